'use strict';
// Elements are made here and nowhere else. Text goes in as text nodes: a name from a model is never markup.
const PV = { tabs: [] };

PV.el = (tag, props = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(props)) {
        if (value === null || value === undefined || value === false) continue;
        if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
        else if (key === 'class') element.className = value;
        else element.setAttribute(key, value === true ? '' : String(value));
    }
    element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined).map(PV.child));
    return element;
};

PV.child = (child) => (child instanceof Node ? child : document.createTextNode(PV.visible(child)));

// Characters that change how text around them is shown (direction, invisible ones) are written as codes.
PV.visible = (text) => String(text).replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);

PV.svg = (tag, attributes = {}, ...children) => {
    const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
    element.append(...children.map(PV.child));
    return element;
};

PV.number = (value) => (value === null || value === undefined ? '–'
    : typeof value === 'number' ? value.toLocaleString('en', { maximumSignificantDigits: Math.max(4, String(Math.trunc(value)).length) })
        : String(value));

PV.bytes = (value) => {
    if (value === null || value === undefined) return '–';
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let step = 0;
    while (value >= 1024 && step < units.length - 1) { value /= 1024; step += 1; }
    return `${Number(value.toFixed(value < 10 && step ? 2 : value < 100 && step ? 1 : 0))} ${units[step]}`;
};

// A size before and after: where both read the same, by how much it changed.
PV.change = (before, after) => {
    const [a, b] = [PV.bytes(before), PV.bytes(after)];
    if (a !== b) return `${a} → ${b}`;
    return before === after ? b : `${b} (${after < before ? '−' : '+'}${PV.bytes(Math.abs(after - before))})`;
};

PV.duration = (seconds) => (seconds < 1 ? `${PV.number(Math.round(seconds * 1e4) / 10)} ms` : `${PV.number(Math.round(seconds * 100) / 100)} s`);

PV.table = (heads, rows) => PV.el('table', {},
    PV.el('thead', {}, PV.el('tr', {}, heads.map(([text, kind]) => PV.el('th', { class: kind, scope: 'col' }, text)))),
    PV.el('tbody', {}, rows.map((row) => PV.el('tr', {}, row.map((cell, i) => PV.el('td', { class: heads[i][1] }, cell ?? '–'))))));

PV.facts = (pairs) => PV.el('dl', { class: 'facts' },
    pairs.filter(([, value]) => value !== null && value !== undefined && value !== '')
        .map(([name, value]) => [PV.el('dt', {}, name), PV.el('dd', {}, value)]));

PV.note = (text, kind = 'note') => PV.el('p', { class: kind }, text);
