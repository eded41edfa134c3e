// Elements as data, and the patch of a tree of elements to them. No markup is parsed.
//
// Guarantees: an element with the same key stays in the document, with focus and scroll position;
// unchanged attributes are not written.

const SVG = 'http://www.w3.org/2000/svg';

/**
 * @typedef {{tag: string, props: Record<string, any>, children: Array<Node_ | string>, key: any}} Node_
 */

/**
 * Describes an element. Properties: attributes, `class`, `on…` functions, `css` (an object of
 * styles, set through CSSOM), `key`, `ref` (called with the element).
 * @param {string} tag @param {Record<string, any> | null} [props] @param {...any} children
 * @returns {Node_}
 */
export function h(tag, props, ...children) {
  const list = [];
  flatten(children, list);
  return { tag, props: props || {}, children: list, key: props ? props.key : undefined };
}

function flatten(from, to) {
  for (const child of from) {
    if (Array.isArray(child)) flatten(child, to);
    else if (child === null || child === undefined || child === false) continue;
    else if (typeof child === 'object') to.push(child);
    else to.push(String(child));
  }
}

const SVG_TAGS = new Set(['svg', 'path', 'rect', 'circle', 'line', 'polyline', 'g', 'text', 'polygon', 'defs', 'marker', 'title']);

/** @param {Node_} node @returns {Element} */
function create(node) {
  const element = SVG_TAGS.has(node.tag) && node.tag !== 'title'
    ? document.createElementNS(SVG, node.tag)
    : document.createElement(node.tag);
  if (node.tag === 'button') element.setAttribute('type', 'button');
  update((element), {}, node);
  return element;
}

/** @param {Record<string, any>} old @param {Node_} node */
function update(element, old, node) {
  const { props } = node;
  for (const name in old) if (!(name in props)) set(element, name, undefined, old[name]);
  for (const name in props) if (old[name] !== props[name]) set(element, name, props[name], old[name]);
  element.__props = props;
  element.__key = node.key;
  patchChildren(element, node.children);
  if (props.ref) props.ref(element);
}

function set(element, name, value, old) {
  if (name === 'key' || name === 'ref') return;
  if (name.startsWith('on')) {
    const type = name.slice(2).toLowerCase();
    if (!element.__on) element.__on = {};
    if (!(type in element.__on)) {
      element.addEventListener(type, (event) => {
        const handler = element.__on[type];
        if (handler) handler.call(element, event);
      });
    }
    element.__on[type] = value;
  } else if (name === 'css') {
    for (const style in old || {}) if (!value || !(style in value)) element.style.removeProperty(style);
    for (const style in value || {}) {
      if (!old || old[style] !== value[style]) element.style.setProperty(style, value[style]);
    }
  } else if (name === 'value') {
    if (element.value !== value) element.value = value === undefined ? '' : value;
  } else if (value === undefined || value === false || value === null) {
    element.removeAttribute(name);
  } else {
    element.setAttribute(name, value === true ? '' : value);
  }
}

/**
 * Makes the children of an element equal to a list.
 * @param {Array<Node_ | string | null>} children
 */
export function patchChildren(parent, children) {
  /** @type {Map<any, any>} */
  let keyed = new Map();
  const unkeyed = [];
  for (let child = parent.firstChild; child; child = child.nextSibling) {
    if (child.__key !== undefined) keyed.set(child.__key, child);
    else unkeyed.push(child);
  }
  let place = parent.firstChild;
  let nextUnkeyed = 0;
  for (const child of children) {
    if (child === null) continue;
    let element;
    if (typeof child === 'string') {
      const found = unkeyed[nextUnkeyed];
      if (found && found.nodeType === 3) {
        nextUnkeyed += 1;
        if (found.data !== child) found.data = child;
        element = found;
      } else element = document.createTextNode(child);
    } else if (child.key !== undefined) {
      const found = keyed.get(child.key);
      if (found && found.localName === child.tag) {
        keyed.delete(child.key);
        update(found, found.__props, child);
        element = found;
      } else element = create(child);
    } else {
      const found = unkeyed[nextUnkeyed];
      if (found && found.nodeType === 1 && found.localName === child.tag) {
        nextUnkeyed += 1;
        update(found, found.__props || {}, child);
        element = found;
      } else element = create(child);
    }
    if (element === place) place = place.nextSibling;
    else parent.insertBefore(element, place);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

/** Paths, and other elements with their attributes. @type {Record<string, any[]>} */
const ICONS = {
  timeline: ['M3 2v12M8 2v12M13 2v12M3 5h5M8 11h5', ['circle', { cx: 3, cy: 5, r: 1.4, fill: 'currentColor' }], ['circle', { cx: 13, cy: 11, r: 1.4, fill: 'currentColor' }]],
  why: [['circle', { cx: 3.5, cy: 3.5, r: 1.8 }], ['circle', { cx: 3.5, cy: 12.5, r: 1.8 }], ['circle', { cx: 12.5, cy: 8, r: 1.8 }], 'M5.3 3.5H7A2 2 0 0 1 9 5.5V8h1.7M5.3 12.5H7A2 2 0 0 0 9 10.5V8'],
  queues: ['M2 4h12M2 8h9M2 12h6'],
  objects: ['M3.5 2v10.5h4M3.5 7h4', ['rect', { x: 8, y: 5, width: 6, height: 4, rx: 1 }], ['rect', { x: 8, y: 10.5, width: 6, height: 4, rx: 1 }]],
  findings: ['M8 2.5 14 13H2zM8 6.5v3M8 11.2v.1'],
  operators: [['rect', { x: 2, y: 2, width: 5, height: 5, rx: 1 }], ['rect', { x: 9, y: 2, width: 5, height: 5, rx: 1 }], ['rect', { x: 2, y: 9, width: 5, height: 5, rx: 1 }], ['rect', { x: 9, y: 9, width: 5, height: 5, rx: 1 }]],
  search: [['circle', { cx: 7, cy: 7, r: 4.2 }], 'm10.2 10.2 3.3 3.3'],
  pause: ['M5.5 3.5v9M10.5 3.5v9'],
  play: [['path', { d: 'M5 3.2v9.6L12.5 8z', fill: 'currentColor' }]],
  prev: ['m9.5 4-4 4 4 4'],
  next: ['m6.5 4 4 4-4 4'],
  down: ['m4.5 6.5 3.5 3.5 3.5-3.5'],
  right: ['m6.5 4.5 3.5 3.5-3.5 3.5'],
  table: [['rect', { x: 2, y: 3, width: 12, height: 10, rx: 1.5 }], 'M2 6.5h12M6.5 6.5V13'],
  save: ['M8 2.5v7M5 7l3 3 3-3M3 13h10'],
  moon: ['M13 9.5A5.5 5.5 0 1 1 6.5 3 4.5 4.5 0 0 0 13 9.5z'],
  sun: [['circle', { cx: 8, cy: 8, r: 2.8 }], 'M8 1.5V3M8 13v1.5M1.5 8H3M13 8h1.5M3.5 3.5l1 1M11.5 11.5l1 1M12.5 3.5l-1 1M4.5 11.5l-1 1'],
  close: ['m4.5 4.5 7 7M11.5 4.5l-7 7'],
  copy: [['rect', { x: 5.5, y: 5.5, width: 8, height: 8, rx: 1.5 }], 'M10.5 5.5v-2a1 1 0 0 0-1-1h-6a1 1 0 0 0-1 1v6a1 1 0 0 0 1 1h2'],
  check: ['m3.5 8.5 3 3 6-7'],
  clock: [['circle', { cx: 8, cy: 8, r: 5.5 }], 'M8 5v3.2l2 1.3'],
  loop: ['M3 8a5 5 0 0 1 8.7-3.3L13 6M13 2.8V6H9.8M13 8a5 5 0 0 1-8.7 3.3L3 10M3 13.2V10h3.2'],
  lock: [['rect', { x: 3, y: 7, width: 10, height: 6.5, rx: 1.5 }], 'M5.5 7V5a2.5 2.5 0 0 1 5 0v2'],
  pin: ['M8 9.5V14M4.5 9.5h7L10 6.5v-4H6v4z'],
  keys: [['rect', { x: 1.5, y: 4, width: 13, height: 8, rx: 1.5 }], 'M4 7h.1M6.7 7h.1M9.3 7h.1M12 7h.1M5 9.7h6'],
  error: [['circle', { cx: 8, cy: 8, r: 5.5 }], 'm6 6 4 4M10 6l-4 4'],
  user: [['circle', { cx: 8, cy: 5.5, r: 2.5 }], 'M3 13.5a5 5 0 0 1 10 0'],
  filter: ['M2.5 4h11M4.5 8h7M6.5 12h3'],
  cut: ['M2 8h3l2-4 2 8 2-4h3'],
  mark: ['M3 13 6 3M7 13l3-10M11 13l3-10'],
};

/** An icon. @param {string} name @param {number} [size] */
export function icon(name, size = 16) {
  return h('svg', {
    width: size, height: size, viewBox: '0 0 16 16', fill: 'none', stroke: 'currentColor',
    'stroke-width': 1.5, 'stroke-linecap': 'round', 'stroke-linejoin': 'round', 'aria-hidden': 'true', class: 'ic',
  }, (ICONS[name] || []).map((part) => (typeof part === 'string' ? h('path', { d: part }) : h(part[0], part[1]))));
}

/** @type {Array<[string, Record<string, any>]>} */
const SHAPES = [
  ['rect', { x: 1, y: 4, width: 10, height: 4, rx: 1 }],
  ['circle', { cx: 6, cy: 6, r: 4.5 }],
  ['rect', { x: 2, y: 2, width: 8, height: 8, rx: 1 }],
  ['path', { d: 'M6 1.300 11 10.200H1z' }],
  ['path', { d: 'M6 .8 11.200 6 6 11.200.8 6z' }],
  ['circle', { cx: 6, cy: 6, r: 3.5, fill: 'none', stroke: 'currentColor', 'stroke-width': 2.6 }],
  ['path', { d: 'M4.300 1h3.400v3.300H11v3.400H7.700V11H4.300V7.700H1V4.300h3.300z' }],
  ['path', { d: 'M6 10.700 11 1.800H1z' }],
  ['rect', { x: 1, y: 4, width: 10, height: 4, rx: 1 }],
];

/** The colour and shape of a controller. @param {number} number @param {number} [size] */
export function shape(number, size = 12) {
  const [tag, attributes] = SHAPES[number] || SHAPES[8];
  return h('svg', { class: `shape c${number}`, width: size, height: size, viewBox: '0 0 12 12', fill: 'currentColor', 'aria-hidden': 'true' },
    h(tag, attributes));
}

/** @type {Array<[string, Record<string, any>]>} */
const HOLLOW_SHAPES = [
  ['rect', { x: 2.5, y: 2.5, width: 7, height: 7, rx: 1 }],
  ['circle', { cx: 6, cy: 6, r: 4 }],
  ['path', { d: 'M6 1.500 10.500 6 6 10.500 1.500 6z' }],
  ['path', { d: 'M6 2 10.500 9.800H1.500z' }],
];

/** The hollow square of a writer outside of this process; other shapes distinguish several. */
export function outside(size = 12, number = 0) {
  const [tag, attributes] = HOLLOW_SHAPES[Math.min(number, HOLLOW_SHAPES.length - 1)];
  return h('svg', { class: 'shape', width: size, height: size, viewBox: '0 0 12 12', 'aria-hidden': 'true' },
    h(tag, { ...attributes, class: 'hollow' }));
}
