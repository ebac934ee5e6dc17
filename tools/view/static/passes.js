'use strict';
// The passes in order: what each did, nodes and bytes through the pipeline, and what a pass removed and added.
PV.tabs.push({ key: 'passes', title: 'Passes', show: (panel, data, state) => {
    if (!data.passes) { panel.append(PV.note(data.errors.passes || 'passes.json is not in this directory', 'error')); return; }
    const runs = data.passes.passes || [];
    const changed = runs.filter((run) => Object.keys(run.matches).length);
    const [nodes, size] = [data.passes.nodes, data.passes.bytes];
    if (nodes) panel.append(PV.note(`${PV.number(nodes[0])} → ${PV.number(nodes[1])} nodes, ${PV.change(size[0], size[1])} of constants, ${PV.number(data.passes.runs)} runs of passes in ${PV.duration(data.passes.seconds)}`));
    if (changed.length) {
        const through = (key) => [changed[0][`${key}_before`], ...changed.map((run) => run[`${key}_after`])];
        const names = ['start', ...changed.map((run) => `${run.round}/${run.name}`)];
        panel.append(PV.el('div', { class: 'columns' },
            PV.el('section', {}, PV.el('h2', {}, 'Nodes'), PV.steps({ label: 'Nodes after each pass', series: [{ name: 'nodes', points: through('nodes') }], names })),
            PV.el('section', {}, PV.el('h2', {}, 'Bytes of constants'), PV.steps({ label: 'Bytes after each pass', series: [{ name: 'bytes', points: through('bytes') }], names, format: PV.bytes, tone: 1 }))));
    }
    const body = PV.el('tbody');
    const heads = [['Round', 'n'], ['Pass', ''], ['Matches', ''], ['Not done', ''], ['Nodes', 'n'], ['Bytes', 'n'], ['ms', 'n']];
    const counts = (found) => Object.entries(found).map(([name, count]) => PV.el('div', { class: name.length < 40 ? 'whole' : null }, `${name} ×${count}`));
    const draw = (all) => body.replaceChildren(...(all ? runs : changed).slice(0, 250).map((run) => {
        const key = `${run.round}/${run.name}`;
        const did = Object.keys(run.matches).length > 0;
        const row = PV.el('tr', {}, [run.round,
            did ? PV.el('button', { type: 'button', class: 'link', 'aria-expanded': 'false', onclick: (event) => toggle(row, key, event.currentTarget) }, run.name) : run.name,
            counts(run.matches), counts(run.rejected), `${run.nodes_before} → ${run.nodes_after}`,
            PV.change(run.bytes_before, run.bytes_after),
            (run.seconds * 1000).toFixed(2)].map((cell, i) => PV.el('td', { class: heads[i][1] }, cell)));
        return row;
    }));
    const more = (runs.length > 250) ? [PV.note(`the first 250 of ${runs.length} runs; the Log tab has all`)] : [];
    const toggle = async (row, key, button) => {
        const open = button.getAttribute('aria-expanded') === 'true';
        button.setAttribute('aria-expanded', open ? 'false' : 'true');
        row.classList.toggle('open', !open);
        if (open) { row.nextElementSibling.remove(); return; }
        const cell = PV.el('td', { colspan: heads.length }, PV.note('Running the passes again …'));
        row.after(PV.el('tr', { class: 'diff' }, cell));
        try {
            const { diffs, note } = await state.diffs();
            cell.replaceChildren(...(note ? [PV.note(note)] : PV.diff(diffs[key] || { removed: [], added: [] })));
        } catch (error) { cell.replaceChildren(PV.note(error.message, 'error')); }
    };
    const idle = PV.el('input', { type: 'checkbox', onchange: (event) => draw(event.currentTarget.checked) });
    panel.append(PV.el('h2', {}, 'Every pass'), PV.el('label', { class: 'note' }, idle, ' also those of the last round, which found nothing'),
        PV.el('table', {}, PV.el('thead', {}, PV.el('tr', {}, heads.map(([text, kind]) => PV.el('th', { class: kind, scope: 'col' }, text)))), body), ...more);
    if (!changed.length) panel.append(PV.note('No pass changed anything.'));
    draw(false);
} });

PV.diff = ({ removed, added }) => {
    const lines = [...removed.map((line) => ['removed', `− ${line}`]), ...added.map((line) => ['added', `+ ${line}`])];
    if (!lines.length) return [PV.note('The nodes are the same: only constants, types or metadata changed.')];
    const head = PV.note(`${removed.length} removed, ${added.length} added`);
    if (lines.length <= 60) return [head, PV.el('pre', {}, lines.map(([kind, line]) => PV.el('div', { class: kind }, line)))];
    const found = PV.searchable({ label: 'Lines', items: lines, text: ([, line]) => line,
        draw: ([kind, line]) => PV.el('span', { class: `mono ${kind}` }, line) });
    return [head, PV.el('div', { class: 'fixed' }, found.parts)];
};
