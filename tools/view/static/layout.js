'use strict';
// The layout of a value over the machine: which cell, address and lane holds which element.
// A subaxis is [size, level, stride]; level '' counts addresses, W lanes, Time slices. The rule is compiler/plan/layout.py's.
PV.element = (value, place) => {
    const levels = new Set([...value.axes.flat().map((sub) => sub[1]), ...Object.keys(place)]);
    const digits = new Map();
    for (const level of levels) {
        let rest = place[level] || 0;
        const subs = value.axes.flat().filter((sub) => sub[1] === level).concat(
            value.copies.filter((copy) => copy[0] === level).map(([, size, stride]) => [size || rest + 1, level, stride]));
        for (const sub of subs.sort((a, b) => b[2] - a[2] || b[0] - a[0])) {
            const digit = Math.min(Math.floor(rest / sub[2]), sub[0] - 1);
            rest -= digit * sub[2];
            digits.set(sub, digit);
        }
        if (rest) return null;
    }
    return value.axes.map((axis) => axis.reduce((at, sub) => at * sub[0] + digits.get(sub), 0));
};

PV.extent = (value, level) => 1 + value.axes.flat().concat(value.copies.filter((c) => c[1]).map(([name, size, stride]) => [size, name, stride]))
    .filter((sub) => sub[1] === level).reduce((sum, sub) => sum + (sub[0] - 1) * sub[2], 0);

PV.padded = (value, index) => index.some((at, i) => at >= value.shape[i]);

PV.layoutView = (value, machine) => {
    const facts = PV.facts([['Type', value.type], ['Device dtype', value.dtype], ['Memory', [value.loc, value.addr].filter((x) => x !== null).join(' ')],
        ['Padding holds', value.pad], ['Layout', value.layout && PV.el('span', { class: 'mono' }, value.layout)]]);
    const parts = [PV.el('h3', {}, value.name), facts];
    if (!value.axes && value.layout && value.shape) return [...parts, ...PV.linear(value)];
    if (!value.axes || !machine) return [...parts, PV.note('There is no layout to draw.')];
    const levels = machine.levels;
    const place = Object.fromEntries(levels.map(([name]) => [name, 0]));
    const words = PV.extent(value, '');
    const lanes = Math.max(PV.extent(value, 'W'), value.copies.some((c) => c[0] === 'W') ? machine.lanes[value.dtype] || 1 : 1);
    const holder = PV.el('div');
    const text = (index) => index.map((at) => String(at)).join(',') || '·';
    const first = (at) => PV.element(value, { ...at, '': 0, W: 0 });
    const grid = (names) => {
        const sizes = names.map((name) => levels.find((level) => level[0] === name)[1]);
        const columns = sizes.at(-1);
        const total = sizes.reduce((a, b) => a * b, 1);
        const cells = [...Array(total).keys()].map((number) => {
            const at = { ...place };
            let rest = number;
            for (let i = names.length - 1; i >= 0; i -= 1) { at[names[i]] = rest % sizes[i]; rest = Math.floor(rest / sizes[i]); }
            const index = first(at);
            const where = names.map((name) => `${name} ${at[name]}`).join(', ');
            const content = index === null ? '–' : PV.padded(value, index) ? 'pad' : text(index);
            const mine = names.every((name) => at[name] === place[name]);
            const button = PV.el('button', { type: 'button', class: index && !PV.padded(value, index) ? 'has' : '', 'aria-pressed': mine ? 'true' : 'false',
                'aria-label': `${where}: ${content}`, title: `${where}: first element ${content}`, onclick: () => { Object.assign(place, at); draw(`${names}${number}`); } }, content);
            button.dataset.cell = `${names}${number}`;
            return button;
        });
        const box = PV.el('div', { class: 'cells' }, cells);
        box.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
        return box;
    };
    const draw = (focus) => {
        const names = levels.map(([name]) => name);
        const [outer, inner] = names.length > 2 ? [names.slice(0, -2), names.slice(-2)] : [[], names];
        const here = (these) => these.map((name) => `${name} ${place[name]}`).join(', ');
        const shown = Math.min(words, 16);
        const rows = [...Array(shown).keys()].map((address) => PV.el('tr', {}, PV.el('th', {}, String(address)), [...Array(lanes).keys()].map((lane) => {
            const index = PV.element(value, { ...place, '': address, W: lane });
            const pad = index !== null && PV.padded(value, index);
            return PV.el('td', { class: index === null || pad ? 'pad' : '' }, index === null ? '–' : pad ? 'pad' : text(index));
        })));
        holder.replaceChildren(
            ...(outer.length ? [PV.el('h3', {}, `${outer.join(' × ')}: first element of each`), grid(outer)] : []),
            PV.el('h3', {}, `${inner.join(' × ')}${outer.length ? ` inside ${here(outer)}` : ''}`), grid(inner),
            PV.el('h3', {}, `Words of ${here(names)}: address × lane`), PV.el('table', { class: 'words' }, PV.el('tbody', {}, rows)),
            ...(words > shown ? [PV.note(`and ${words - shown} more addresses`)] : []));
        if (focus) [...holder.querySelectorAll('button')].find((button) => button.dataset.cell === focus)?.focus();
    };
    draw();
    return [...parts, PV.note('Numbers are indices of elements; cells that show the same one hold copies. Choose a cell to look inside.'), holder];
};

// XLA's layouts, {minor, …, major} and tiles: the order of elements in memory, where no tiles change it.
PV.linear = (value) => {
    const found = /^\{([\d,]*)(:.*)?\}$/.exec(value.layout);
    if (!found) return [PV.note("Another compiler's layout, as it writes it.")];
    const order = found[1] ? found[1].split(',').map(Number) : [];
    if (order.some((axis) => axis >= value.shape.length)) return [PV.note("Another compiler's layout, as it writes it.")];
    const strides = {};
    let step = 1;
    for (const axis of order) { strides[axis] = step; step *= value.shape[axis]; }
    const parts = [PV.facts([['Axes', `${order.join(', ')} (minor to major)`],
        ['Strides', order.length ? value.shape.map((_, axis) => strides[axis]).join(', ') : null]])];
    if (found[2]) return [...parts, PV.note(`In tiles, ${found[2].slice(1)}: strides are those between elements before tiling.`)];
    const count = Math.min(step, 64);
    const cells = [...Array(count).keys()].map((at) => PV.el('td', { title: `element at offset ${at}` },
        value.shape.map((size, axis) => Math.floor(at / strides[axis]) % size).join(',') || '·'));
    const rows = [];
    for (let at = 0; at < count; at += 8) rows.push(PV.el('tr', {}, PV.el('th', {}, String(at)), cells.slice(at, at + 8)));
    return [...parts, PV.el('h3', {}, 'Elements in the order of memory'), PV.el('table', { class: 'words' }, PV.el('tbody', {}, rows)),
        ...(step > count ? [PV.note(`and ${PV.number(step - count)} more`)] : [])];
};
