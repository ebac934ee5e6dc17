'use strict';
// Every stage: an outline beside Netron's drawing; a chosen node shows what it became, its tensors, its Python line.
PV.related = (node, own, nodes) => {
    const by = (test, why) => { const found = nodes.filter(test); return found.length ? { found, why } : null; };
    const self = new Set([node.name, ...node.out].filter(Boolean));
    const names = new Set(node.out.filter(Boolean));
    const origin = PV.isMove(node) ? PV.moved(node, own) : null;
    return by((other) => other.from.some((name) => self.has(name))
            || node.from.some((name) => name === other.name || other.out.includes(name)), 'made from it (pfvm.from)')
        || by((other) => other.out.some((name) => names.has(name)), 'makes the same value')
        || (origin && by((other) => other.out.includes(origin), 'makes the value that is moved'))
        || (origin && by((other) => other.in.includes(origin), 'reads the value that is moved'))
        || (node.source && by((other) => other.source === node.source && other.op === node.op, 'same Python line and operator'))
        || (node.source && by((other) => other.source === node.source && !PV.isMove(other), 'same Python line'))
        || { found: [], why: '' };
};

PV.isMove = (node) => node.op.startsWith('MNCore');

// The value that a chain of moves, which the plan inserted, begins with.
PV.moved = (node, own) => {
    const makers = new Map(own.flatMap((each) => each.out.map((name) => [name, each])));
    let at = node;
    for (let steps = 0; at && PV.isMove(at) && steps < own.length; steps += 1) {
        const maker = makers.get(at.in[0]);
        if (!maker || !PV.isMove(maker)) return at.in[0];
        at = maker;
    }
    return null;
};

// Does a stage say what its nodes were made of? Exported and compiled graphs do by their names.
PV.saysOrigins = (stage) => stage.key !== 'planned' || stage.nodes.some((node) => node.from.length || node.source || PV.isMove(node));

// Why another stage has no node for this one.
PV.unrelated = (node, own, other, stages) => {
    if (!PV.saysOrigins(own) || !PV.saysOrigins(other)) return 'not said: the schedule of this compiler names no origins';
    if (node.out.some((name) => other.tensors[name])) return 'a constant there';
    if (other.key === 'planned') return 'no node names it';
    if (own.key === 'planned' && !node.from.length) return 'not said';
    return stages.indexOf(other) > stages.indexOf(own) ? 'nothing left of it' : 'no node there';
};

PV.nodeLabel = (node) => node.out.find(Boolean) || node.name || '';

PV.tabs.push({ key: 'stages', title: 'Stages', fill: true, show: (panel, data, state) => {
    const stages = data.stages;
    let stage = stages.find((each) => each.key === state.stage) || stages.find((each) => !each.error) || stages[0];
    const body = PV.el('div', { class: 'split' });
    const buttons = stages.map((each) => PV.el('button', { type: 'button', onclick: () => open(each) }, each.title));
    panel.append(PV.el('div', { class: 'bar', role: 'group', 'aria-label': 'Stage' }, buttons), body);

    const frame = (each) => {
        const view = PV.el('iframe', { class: 'frame', title: `${each.title} drawn by Netron`, sandbox: 'allow-scripts allow-same-origin allow-downloads',
            src: `netron/${state.number}/${encodeURIComponent(each.key)}/` });
        const size = each.nodes.length;
        if (!each.drawn) return PV.el('div', { class: 'empty' }, `${each.file} is not in this directory: the schedule of l3ir.txt has no graph to draw`);
        if (!state.netron) return PV.el('div', { class: 'empty' }, state.embedded ? 'Drawings are left out of this file' : "pip install 'pfvm[view]' brings Netron, which draws the graph");
        if (size <= 1500) return view;
        const holder = PV.el('div', { class: 'empty' }, PV.el('p', {}, `${size.toLocaleString('en')} nodes take Netron a while.`),
            PV.el('button', { type: 'button', onclick: () => holder.replaceWith(view) }, 'Draw the graph'));
        return holder;
    };
    // A stage that does not say a tensor's type: another one does, for the value of that name.
    const tensor = (each, name) => {
        const type = [each, ...stages].map((other) => other.tensors[name]).find(Boolean);
        return [PV.el('span', { class: 'mono' }, name || '(left out)'), type ? ` ${type}` : ''];
    };
    const describe = (each, node, detail) => {
        const links = stages.filter((other) => other !== each && !other.error).map((other) => {
            const { found, why } = PV.related(node, each.nodes, other.nodes);
            const shown = found.slice(0, 12);
            return [PV.el('dt', {}, other.title), PV.el('dd', {}, found.length ? [PV.el('span', { class: 'note' }, why), shown.map((target) =>
                PV.el('div', {}, PV.el('button', { type: 'button', class: 'link', onclick: () => open(other, target) }, `${target.op} ${PV.nodeLabel(target)}`))),
            found.length > 12 ? PV.el('span', { class: 'note' }, `and ${found.length - 12} more`) : null] : PV.unrelated(node, each, other, stages))];
        });
        const row = (name, value) => (value ? [PV.el('dt', {}, name), PV.el('dd', {}, value)] : null);
        detail.replaceChildren(PV.el('h3', {}, `${node.op} ${node.name}`), PV.el('dl', {},
            row('Python', node.source), row('Module', node.module), row('Inside', node.scope), row('Made by', node.rule),
            node.in.map((name) => [PV.el('dt', {}, 'reads'), PV.el('dd', {}, tensor(each, name))]),
            node.out.map((name) => [PV.el('dt', {}, 'makes'), PV.el('dd', {}, tensor(each, name))]), links));
    };
    function open(each, target) {
        const changed = stage !== each || !body.childElementCount;
        stage = each; state.stage = each.key;
        buttons.forEach((button, i) => button.setAttribute('aria-pressed', stages[i] === each ? 'true' : 'false'));
        if (changed) {
            if (each.error) { body.replaceChildren(PV.el('div', { class: 'empty' }, each.error)); return; }
            const detail = PV.el('div', { class: 'detail', tabindex: 0, 'aria-live': 'polite', 'aria-label': 'Chosen node' }, PV.note('Choose a node to see its tensors, its Python line and what it became.'));
            const outline = PV.searchable({ label: 'Nodes', items: each.nodes,
                text: (node) => [node.op, node.name, node.source || '', node.module || '', ...node.out].join(' '),
                draw: (node) => [PV.el('span', { class: 'op' }, node.op), PV.el('span', { class: 'name' }, PV.nodeLabel(node))],
                chosen: (node) => describe(each, node, detail) });
            body.replaceChildren(PV.el('div', { class: 'side' }, outline.parts, detail), PV.el('div', { class: 'wide' }, frame(each)));
            body.outline = outline;
        }
        if (target) body.outline.show(target);
    }
    open(stage);
} });
