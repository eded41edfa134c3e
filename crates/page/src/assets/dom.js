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
 * @param {Array<Node_ | string>} children
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

/** @type {Record<string, Array<[string, Record<string, any>]>>} */
const ICONS = {
  timeline: [['path', { d: 'M3 2v12M8 2v12M13 2v12M3 5h5M8 11h5' }], ['circle', { cx: 3, cy: 5, r: 1.4, fill: 'currentColor' }], ['circle', { cx: 13, cy: 11, r: 1.4, fill: 'currentColor' }]],
  why: [['circle', { cx: 3.5, cy: 3.5, r: 1.8 }], ['circle', { cx: 3.5, cy: 12.5, r: 1.8 }], ['circle', { cx: 12.5, cy: 8, r: 1.8 }], ['path', { d: 'M5.3 3.5H7A2 2 0 0 1 9 5.500V8h1.700M5.300 12.500H7A2 2 0 0 0 9 10.500V8' }]],
  queues: [['path', { d: 'M2 4h12M2 8h9M2 12h6' }]],
  objects: [['path', { d: 'M3.500 2v10.500h4M3.500 7h4' }], ['rect', { x: 8, y: 5, width: 6, height: 4, rx: 1 }], ['rect', { x: 8, y: 10.5, width: 6, height: 4, rx: 1 }]],
  findings: [['path', { d: 'M8 2.500 14 13H2zM8 6.500v3M8 11.200v.1' }]],
  operators: [['rect', { x: 2, y: 2, width: 5, height: 5, rx: 1 }], ['rect', { x: 9, y: 2, width: 5, height: 5, rx: 1 }], ['rect', { x: 2, y: 9, width: 5, height: 5, rx: 1 }], ['rect', { x: 9, y: 9, width: 5, height: 5, rx: 1 }]],
  search: [['circle', { cx: 7, cy: 7, r: 4.2 }], ['path', { d: 'm10.200 10.200 3.300 3.300' }]],
  pause: [['path', { d: 'M5.500 3.500v9M10.500 3.500v9' }]],
  play: [['path', { d: 'M5 3.200v9.600L12.500 8z', fill: 'currentColor' }]],
  prev: [['path', { d: 'm9.500 4-4 4 4 4' }]],
  next: [['path', { d: 'm6.500 4 4 4-4 4' }]],
  down: [['path', { d: 'm4.500 6.500 3.500 3.500 3.500-3.500' }]],
  right: [['path', { d: 'm6.500 4.500 3.500 3.500-3.500 3.500' }]],
  table: [['rect', { x: 2, y: 3, width: 12, height: 10, rx: 1.5 }], ['path', { d: 'M2 6.500h12M6.500 6.500V13' }]],
  save: [['path', { d: 'M8 2.500v7M5 7l3 3 3-3M3 13h10' }]],
  moon: [['path', { d: 'M13 9.500A5.500 5.500 0 1 1 6.500 3 4.500 4.500 0 0 0 13 9.500z' }]],
  sun: [['circle', { cx: 8, cy: 8, r: 2.8 }], ['path', { d: 'M8 1.500V3M8 13v1.500M1.500 8H3M13 8h1.500M3.500 3.500l1 1M11.500 11.500l1 1M12.500 3.500l-1 1M4.500 11.500l-1 1' }]],
  close: [['path', { d: 'm4.500 4.500 7 7M11.500 4.500l-7 7' }]],
  copy: [['rect', { x: 5.5, y: 5.5, width: 8, height: 8, rx: 1.5 }], ['path', { d: 'M10.500 5.500v-2a1 1 0 0 0-1-1h-6a1 1 0 0 0-1 1v6a1 1 0 0 0 1 1h2' }]],
  check: [['path', { d: 'm3.500 8.500 3 3 6-7' }]],
  clock: [['circle', { cx: 8, cy: 8, r: 5.5 }], ['path', { d: 'M8 5v3.200l2 1.300' }]],
  loop: [['path', { d: 'M3 8a5 5 0 0 1 8.700-3.300L13 6M13 2.800V6H9.800M13 8a5 5 0 0 1-8.700 3.300L3 10M3 13.200V10h3.200' }]],
  lock: [['rect', { x: 3, y: 7, width: 10, height: 6.5, rx: 1.5 }], ['path', { d: 'M5.500 7V5a2.500 2.500 0 0 1 5 0v2' }]],
  pin: [['path', { d: 'M8 9.500V14M4.500 9.500h7L10 6.500v-4H6v4z' }]],
  keys: [['rect', { x: 1.5, y: 4, width: 13, height: 8, rx: 1.5 }], ['path', { d: 'M4 7h.1M6.700 7h.1M9.300 7h.1M12 7h.1M5 9.700h6' }]],
  error: [['circle', { cx: 8, cy: 8, r: 5.5 }], ['path', { d: 'm6 6 4 4M10 6l-4 4' }]],
  user: [['circle', { cx: 8, cy: 5.5, r: 2.5 }], ['path', { d: 'M3 13.500a5 5 0 0 1 10 0' }]],
  filter: [['path', { d: 'M2.500 4h11M4.500 8h7M6.500 12h3' }]],
  cut: [['path', { d: 'M2 8h3l2-4 2 8 2-4h3' }]],
  mark: [['path', { d: 'M3 13 6 3M7 13l3-10M11 13l3-10' }]],
};

/** An icon. @param {string} name @param {number} [size] */
export function icon(name, size = 16) {
  return h('svg', {
    width: size, height: size, viewBox: '0 0 16 16', fill: 'none', stroke: 'currentColor',
    'stroke-width': 1.5, 'stroke-linecap': 'round', 'stroke-linejoin': 'round', 'aria-hidden': 'true', class: 'ic',
  }, (ICONS[name] || []).map(([tag, attributes]) => h(tag, attributes)));
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

/** The hollow square of a writer outside of this process. */
export function outside(size = 12) {
  return h('svg', { class: 'shape', width: size, height: size, viewBox: '0 0 12 12', 'aria-hidden': 'true' },
    h('rect', { x: 2.5, y: 2.5, width: 7, height: 7, rx: 1, class: 'hollow' }));
}
