//! Operators: conditional, logical, relational, additive, multiplicative, unary.
//! In: tokens. Out: calls named after the operators, nested by precedence.
//! Guarantees: operators of the same precedence associate from the left; long chains of `&&` and
//! `||` become balanced trees.

use crate::{
    ast::{Call, Expr, Id, Kind, operator},
    lexer::Token,
};

use super::{Parser, Stop};

/// Binary operators with the strength by which they bind; `||` and `&&` bind least.
pub(super) fn binary_operator(token: Token) -> Option<(&'static str, u8)> {
    let Token::Sign(sign) = token else {
        return None;
    };
    Some(match sign {
        "||" => (operator::OR, 1),
        "&&" => (operator::AND, 2),
        "<" => (operator::LESS, 3),
        "<=" => (operator::LESS_EQUALS, 3),
        ">=" => (operator::GREATER_EQUALS, 3),
        ">" => (operator::GREATER, 3),
        "==" => (operator::EQUALS, 3),
        "!=" => (operator::NOT_EQUALS, 3),
        "in" => (operator::IN, 3),
        "+" => (operator::ADD, 4),
        "-" => (operator::SUBTRACT, 4),
        "*" => (operator::MULTIPLY, 5),
        "/" => (operator::DIVIDE, 5),
        "%" => (operator::MODULO, 5),
        _ => return None,
    })
}

impl Parser<'_> {
    pub(super) fn expression(&mut self) -> Result<Expr, Stop> {
        self.deeper(|n| &mut n.expressions)?;
        let expr = self.binary(1)?;
        let expr = match self.take("?") {
            None => expr,
            Some(at) => {
                let id = self.id(at);
                let yes = self.binary(1)?;
                self.expect(":")?;
                let no = self.expression()?;
                let chosen = self.global_call(id, operator::CONDITIONAL, vec![expr, yes, no])?;
                self.level(chosen)?
            }
        };
        self.nesting.expressions -= 1;
        Ok(expr)
    }

    fn binary(&mut self, weakest: u8) -> Result<Expr, Stop> {
        let relations = self.nesting.relations;
        let sums = self.nesting.sums;
        // The right side of a sum is no relation.
        if weakest <= 4 {
            self.deeper(|n| &mut n.relations)?;
        }
        self.deeper(|n| &mut n.sums)?;
        let mut left = self.unary()?;
        while let Some((name, strength)) =
            binary_operator(self.peek().token).filter(|(_, strength)| *strength >= weakest)
        {
            if strength <= 2 {
                left = self.logic(name, strength, left)?;
                continue;
            }
            let at = self.peek().at;
            self.at += 1;
            let id = self.id(at);
            let right = self.binary(strength + 1)?;
            let joined = self.global_call(id, name, vec![left, right])?;
            left = self.level(joined)?;
        }
        (self.nesting.relations, self.nesting.sums) = (relations, sums);
        Ok(left)
    }

    /// Many terms joined by `&&` or `||` become a tree that is as flat as it can be.
    fn logic(&mut self, name: &'static str, strength: u8, first: Expr) -> Result<Expr, Stop> {
        let mut terms = vec![Some(first)];
        let mut ids = Vec::new();
        while binary_operator(self.peek().token).is_some_and(|(next, _)| next == name) {
            let at = self.peek().at;
            self.at += 1;
            terms.push(Some(self.binary(strength + 1)?));
            ids.push(self.id(at));
        }
        self.balanced(name, &mut terms, &ids)
    }

    fn balanced(
        &mut self,
        name: &'static str,
        terms: &mut [Option<Expr>],
        ids: &[Id],
    ) -> Result<Expr, Stop> {
        if let [only] = terms {
            return Ok(only.take().expect("every term is used once"));
        }
        let middle = ids.len() / 2;
        let (left, right) = terms.split_at_mut(middle + 1);
        let args = vec![
            self.balanced(name, left, &ids[..middle])?,
            self.balanced(name, right, &ids[middle + 1..])?,
        ];
        self.node(
            ids[middle],
            Kind::Call(Call {
                function: name.into(),
                target: None,
                args,
            }),
        )
    }

    fn unary(&mut self) -> Result<Expr, Stop> {
        for (sign, name) in [("!", operator::NOT), ("-", operator::NEGATE)] {
            let number_follows = matches!(self.peek_at(1), Token::Int | Token::Float);
            if !self.is(sign) || (sign == "-" && number_follows) {
                continue;
            }
            let at = self.peek().at;
            let mut count = 0;
            while self.take(sign).is_some() {
                count += 1;
            }
            if count % 2 == 0 {
                return self.member();
            }
            let id = self.id(at);
            let operand = self.member()?;
            return self.global_call(id, name, vec![operand]);
        }
        self.member()
    }
}
