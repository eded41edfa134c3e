//! A bounded run of every fuzz target: good inputs, changed at random from a fixed seed.

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

/// Inputs a target.
const INPUTS: usize = 20_000;

/// No input becomes longer.
const INPUT_MAX_BYTES: usize = 2_000;

/// Pieces that readers treat in a special way.
const PIECES: &[&str] = &[
    "/",
    "..",
    "%2e",
    "%2f",
    "%00",
    "%",
    "\0",
    "{",
    "}",
    "[",
    "]",
    "{\"a\":",
    "[[[[[[[[",
    "\"",
    "\\",
    "\\ud800",
    "\\u0000",
    ":",
    ",",
    "-",
    "- ",
    "\n",
    "  ",
    "\t",
    "&a ",
    "*a",
    "<<: ",
    "!!",
    "|",
    ">",
    "1e999",
    "-0",
    "9223372036854775808",
    "0x",
    "~1",
    "~0",
    "null",
    "true",
    "=",
    "!=",
    "!",
    " in ",
    " notin ",
    "(",
    ")",
    "é",
    "\u{feff}",
    "\u{1f980}",
    "$ref",
    "\"default\":",
    "\"type\":\"object\"",
    "\"items\":",
    "\"x-kubernetes-int-or-string\":true",
    "\"pattern\":\"(a{99}){99}\"",
    "\"not\":",
    "\"nullable\":true",
];

fn check(target: fn(&[u8]), good: &[&str]) {
    check_times(target, good, INPUTS);
}

fn check_times(target: fn(&[u8]), good: &[&str], inputs: usize) {
    let mut random = StdRng::seed_from_u64(7);
    for input in good {
        target(input.as_bytes());
    }
    for _ in 0..inputs {
        let mut input = good[random.random_range(0..good.len())].as_bytes().to_vec();
        for _ in 0..random.random_range(1..6) {
            change(&mut input, good, &mut random);
        }
        input.truncate(INPUT_MAX_BYTES);
        target(&input);
    }
}

/// Changes an input in one place.
fn change(input: &mut Vec<u8>, good: &[&str], random: &mut StdRng) {
    let at = random.random_range(0..=input.len());
    let end = random.random_range(at..=input.len().min(at + 40));
    match random.random_range(0..6) {
        0 if at < input.len() => input[at] = random.random(),
        1 => drop(input.drain(at..end)),
        2 => {
            let again = input[at..end].repeat(random.random_range(1..20));
            drop(input.splice(at..at, again));
        }
        3 => {
            let other = good[random.random_range(0..good.len())].as_bytes();
            let from = random.random_range(0..=other.len());
            drop(input.splice(at..end, other[from..].iter().copied()));
        }
        _ => {
            let piece = PIECES[random.random_range(0..PIECES.len())];
            drop(input.splice(at..at, piece.bytes()));
        }
    }
}

#[test]
fn paths_are_read_without_harm() {
    check(
        super::path,
        &[
            "/api/v1/namespaces/a/pods/b/log",
            "/apis/apps/v1/deployments",
            "/api/v1/watch/namespaces/a%2fb/pods",
            "/api/v1/namespaces/x/status",
        ],
    );
}

#[test]
fn json_bodies_are_read_without_harm() {
    check(
        super::json_body,
        &[
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","labels":{"x":"y"}},"data":{"k":"\u00e9\n"},"n":[1,2.5,-3e4,true,null]}"#,
            r#"{"kind":"X","a":{"b":{"c":[[],{}]}}}"#,
        ],
    );
}

#[test]
fn yaml_bodies_are_read_without_harm() {
    check(
        super::yaml_body,
        &[
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: |\n    text\n  n: 0o7\nlist:\n- 1\n- y\n- 1_000\n",
            "kind: X\na: &a {b: [1, 2]}\nc:\n  <<: *a\n  d: !!binary aGk=\n",
            "--- # one\nkind: \"X\"\n? k\n: v\n...\n",
        ],
    );
}

#[test]
fn json_patches_are_applied_without_harm() {
    check(
        super::json_patch,
        &[
            "{\"a\":{\"b\":[1,2,{\"c\":3}]},\"x\":{}}\n[{\"op\":\"add\",\"path\":\"/a/b/-\",\"value\":{}},{\"op\":\"move\",\"from\":\"/x\",\"path\":\"/a/x\"},{\"op\":\"copy\",\"from\":\"/a\",\"path\":\"/a/b/0\"}]",
            "{\"a\":1}\n[{\"op\":\"test\",\"path\":\"/a\",\"value\":1},{\"op\":\"remove\",\"path\":\"/a\"},{\"op\":\"replace\",\"path\":\"/~1~0\",\"value\":[]}]",
        ],
    );
}

#[test]
fn merge_patches_are_applied_without_harm() {
    check(
        super::merge_patch,
        &[
            "{\"a\":{\"b\":[1]},\"x\":null}\n{\"a\":{\"b\":null,\"c\":{\"d\":{}}},\"x\":[1]}",
            "{}\n{\"a\":1}",
            "[1]\n{\"a\":{\"b\":null}}",
        ],
    );
}

#[test]
fn label_selectors_are_read_without_harm() {
    check(
        super::label_selector,
        &[
            "app=web,tier!=back",
            "app in (web,db), n notin (5),!gone",
            "example.dev/role==x,app",
            "n>3,n<9",
        ],
    );
}

#[test]
fn field_selectors_are_read_without_harm() {
    check(
        super::field_selector,
        &[
            "metadata.name=a,status.phase!=Running",
            "spec.nodeName==",
            "a=b\\,c\\=d",
            "labelSelector=a%3Db&limit=5&continue=x&resourceVersion=7&watch=1",
        ],
    );
}

#[test]
fn continue_tokens_are_read_without_harm() {
    check(
        super::continue_token,
        &[
            "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiJhL2JcdTAwMDAifQ",
            "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoieiJ9",
            "e30",
        ],
    );
}

#[test]
fn schemas_are_judged_without_harm() {
    check(
        super::schema,
        &[
            "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"default\":\"x\",\"pattern\":\"^a+$\"},\"n\":{\"type\":\"integer\",\"minimum\":1},\"l\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"string\",\"nullable\":true}}}}}}\n{\"a\":null,\"n\":5,\"l\":[{\"k\":null,\"z\":1}],\"u\":{}}",
            "{\"type\":\"object\",\"x-kubernetes-preserve-unknown-fields\":true,\"properties\":{\"e\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"number\"},\"default\":{}}}}\n{\"e\":{\"x\":1.5},\"metadata\":{\"name\":\"a\"}}",
        ],
    );
}

#[test]
fn rules_are_compiled_and_run_without_harm() {
    let object = r#"{"n":5,"d":1.5,"s":"abc","t":"2024-05-06T07:08:09Z","p":"5%","l":["a","b"],"m":{"k":1},"o":{"x":true}}"#;
    let rules = [
        "self.n > 1 && self.l.all(x, x.size() < 3) || !has(self.o.x)",
        "self.m.exists(k, self.m[k] == self.n) ? self.s.matches('^[a-z]+$') : self.d >= 1.0 / 3.0",
        "self.l.map(x, x + self.s).filter(y, y.contains('b')).size() == [1, 2, 3].sum() - 5",
        "type(self.p) == int ? self.p < 5 : self.p.replace('%', '').size() > 0 && self.t.getFullYear() > 2000",
        "self.?o.x.orValue(false) && {'a': 1, 'b': -2}['a'] in [1, 2] && duration('1h') > duration('30m')",
        "quantity(self.s).isLessThan(quantity('1Gi')) || isIP('10.0.0.1') && cidr('10.0.0.0/8').containsIP('10.1.1.1')",
        "'%s has %d'.format([self.s, self.n]).split(' ')[0] != url('https://a.b/c?d=e').getHost() && semver('1.2.3').major() == 1",
        r"self.l.sortBy(x, x).distinct().reverse().flatten().first().optMap(v, v.upperAscii()).orValue('') != r'\d' + b'x'.size().string()",
        "oldSelf.n <= self.n && self.m.transformMap(k, v, v > 0, v * 2).all(k, v, v < 10) && sets.contains(self.l, ['a'])",
    ];
    let inputs: Vec<String> = rules
        .iter()
        .map(|rule| format!("{rule}\n{object}"))
        .collect();
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    // Each of them makes a definition, so fewer do.
    check_times(super::rule, &inputs, INPUTS / 20);
}
