'use strict';
// What compilation left in words: log files, matches and rejections of passes, notes, the text of the plan.
PV.tabs.push({ key: 'log', title: 'Log', fill: true, show: (panel, data) => {
    if (data.errors.log) panel.append(PV.note(data.errors.log, 'error'));
    if (!data.log.length) { panel.append(PV.note('This directory has no log, no passes.json and no l3ir.txt.')); return; }
    const whole = PV.el('pre', { class: 'detail', tabindex: 0, 'aria-label': 'The chosen line, whole' }, 'Choose a line to see the whole of it.');
    const holder = PV.el('div', { class: 'wide' });
    const sources = ['all', ...new Set(data.log.map(([source]) => source))];
    const choice = PV.el('select', { 'aria-label': 'Source', onchange: () => draw() }, sources.map((name) => PV.el('option', { value: name }, name)));
    const draw = () => {
        const items = choice.value === 'all' ? data.log : data.log.filter(([source]) => source === choice.value);
        holder.replaceChildren(...PV.searchable({ label: 'Lines', items, text: (item) => item.join(' '), controls: [choice],
            draw: ([source, line]) => [PV.el('span', { class: 'source' }, source), PV.el('span', { class: 'mono' }, line)],
            chosen: ([, line]) => whole.replaceChildren(PV.child(line)) }).parts, whole);
    };
    whole.classList.add('short');
    panel.append(holder);
    draw();
} });
