'use strict';
// What the device's compiler decided: memory over the schedule, cycles against their bounds, units in time, layouts.
PV.tabs.push({ key: 'plan', title: 'Plan', show: (panel, data) => {
    const plan = data.plan;
    if (!plan) { panel.append(PV.note(data.errors.plan || 'l3ir.txt is not in this directory: compile for a device that plans or schedules (mncore2:emu, xla:cpu)', 'error')); return; }
    const report = data.report || {};
    const cycles = report.cycles || {};
    const bound = report.lower_bound;
    const section = (title, ...parts) => PV.el('section', {}, PV.el('h2', {}, title), parts);
    const memory = plan.memory.map((each, i) => section(`${each.name} over the schedule`,
        PV.steps({ label: `Bytes live in ${each.name}`, series: [{ name: each.name, points: each.points }], format: PV.bytes, tone: i, axis: ' nodes' }),
        PV.note(`most ${PV.bytes(Math.max(...each.points, 0))}${each.size ? ` of ${PV.bytes(each.size)} in each cell` : ''}${plan.estimated ? ', counted from shapes: this compiler states no addresses' : ''}`)));
    panel.append(PV.el('div', { class: 'columns' }, memory));
    if (!plan.memory.length) panel.append(PV.note('No value of this plan has a place in a memory.'));
    const total = report.vsm_cycles;
    if (typeof total === 'number') {
        const byNode = {};
        for (const [row, , length, name] of plan.timeline ? plan.timeline.spans : []) if (row === 0) byNode[name] = (byNode[name] || 0) + length;
        panel.append(PV.el('div', { class: 'columns two' },
            section('Cycles by kind of node', PV.bars({ label: 'Cycles by operator', values: cycles.by_op || {} })),
            Object.keys(byNode).length ? section('Cycles by node', PV.bars({ label: 'Cycles by node', values: byNode, tone: 1 })) : null,
            section('Busy cycles by path and unit', PV.bars({ label: 'Cycles by path', values: cycles.by_path || {}, tone: 2, mark: { value: total, text: `total ${PV.number(total)}` } })),
            bound ? section('Lower bound by resource', PV.bars({ label: 'Lower bounds', values: bound.by_resource || {}, tone: 3, mark: { value: total, text: `planned ${PV.number(total)}, ${PV.number(bound.ratio)} × the bound` } })) : null));
    } else if (Object.keys(cycles.by_op || {}).length) panel.append(PV.el('div', { class: 'columns two' },
        section('Cycles by kind of node', PV.note(`No total: ${report.cycles_missing || 'the compiler states none'}.`), PV.bars({ label: 'Cycles by operator', values: cycles.by_op }))));
    else panel.append(PV.el('div', { class: 'columns two' },
        section('Nodes by operator', PV.note('This compiler states no cycles.'), PV.bars({ label: 'Nodes by operator', values: report.nodes || {} }))));
    if (plan.timeline) panel.append(section('Timeline by unit', PV.timeline(plan.timeline)));

    const detail = PV.el('div', { class: 'wide' }, PV.note('Choose a value to see where its elements lie.'));
    const values = PV.searchable({ label: 'Values', items: plan.values, text: (value) => [value.name, value.loc, value.dtype, value.layout].join(' '),
        draw: (value) => [PV.el('span', { class: 'op' }, value.loc || '–'), PV.el('span', { class: 'name' }, `${value.name} ${value.type.replace(/^dtype=/, '')}`)],
        chosen: (value) => detail.replaceChildren(...PV.layoutView(value, plan.machine)) });
    const side = PV.el('div', { class: 'side' }, values.parts);
    panel.append(section('Layout of a value', PV.el('div', { class: 'split layout' }, side, detail)));
    const drawn = plan.values.find((value) => value.axes && value.shape.length > 1 && !['DRAM', 'IMM'].includes(value.loc)) 
        || plan.values.find((value) => value.layout && value.loc !== 'IMM') || plan.values[0];
    if (drawn) values.show(drawn);
} });

// Rows by unit. At most 250 spans are drawn at once; buttons step through the rest.
PV.timeline = ({ rows, spans }) => {
    const end = Math.max(...spans.map(([, start, length]) => start + length), 1);
    const state = { from: 0, to: end };
    const holder = PV.el('div');
    const zoom = (factor, shift) => {
        const width = Math.min(end, Math.max(20, (state.to - state.from) * factor));
        const middle = (state.from + state.to) / 2 + shift * (state.to - state.from);
        state.from = Math.max(0, Math.min(end - width, middle - width / 2));
        state.to = state.from + width;
        draw();
    };
    const button = (text, label, factor, shift) => PV.el('button', { type: 'button', 'aria-label': label, onclick: () => zoom(factor, shift) }, text);
    const range = PV.el('span', { class: 'note', 'aria-live': 'polite' });
    const draw = () => {
        const [W, left, row] = [900, 110, 20];
        const H = rows.length * row + 22;
        const svg = PV.canvas(W, H, 'Busy units over cycles');
        const x = (cycle) => left + (W - left - 10) * ((Math.min(state.to, Math.max(state.from, cycle)) - state.from) / (state.to - state.from));
        rows.forEach((name, i) => svg.append(PV.svg('text', { x: left - 8, y: i * row + 14, 'text-anchor': 'end', class: 'strong' }, name),
            PV.svg('line', { class: 'axis', x1: left, x2: W - 10, y1: (i + 1) * row, y2: (i + 1) * row })));
        const visible = spans.filter(([, start, length]) => start < state.to && start + length > state.from);
        const longest = visible.length > 250 ? [...visible].sort((a, b) => b[2] - a[2]).slice(0, 250) : visible;
        for (const [at, start, length, name] of longest) {
            svg.append(PV.svg('rect', { class: `f${at % 7}`, x: x(start), y: at * row + 3, height: row - 6, rx: 1, width: Math.max(0.8, x(start + length) - x(start) - 0.3) },
                PV.svg('title', {}, `${name}: ${PV.number(length)} cycles from ${PV.number(start)}`)));
        }
        svg.append(PV.svg('text', { x: left, y: H - 4 }, PV.number(Math.round(state.from))), PV.svg('text', { x: W - 10, y: H - 4, 'text-anchor': 'end' }, `${PV.number(Math.round(state.to))} cycles`));
        range.textContent = visible.length > 250 ? `the 250 longest of ${visible.length} spans` : `${visible.length} spans`;
        holder.replaceChildren(svg);
    };
    draw();
    return [PV.el('div', { class: 'bar' }, button('+', 'Zoom in', 0.5, 0), button('−', 'Zoom out', 2, 0), button('◀', 'Earlier', 1, -0.5), button('▶', 'Later', 1, 0.5), button('All', 'Whole schedule', 1e9, 0), range), holder];
};
