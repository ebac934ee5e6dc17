'use strict';
// Tabs, the choice of directory and of theme. Data come from the page itself where it was exported, else by fetch.
(async () => {
    const embedded = document.getElementById('data') ? JSON.parse(document.getElementById('data').textContent) : null;
    const get = async (path) => {
        const response = await fetch(path).catch(() => { throw new Error('pfvm view does not answer any more: start it again'); });
        if (!response.ok) throw new Error(await response.text());
        return response.json();
    };
    const keep = (make) => { const made = new Map(); return (n) => { if (!made.has(n)) made.set(n, make(n).catch((error) => { made.delete(n); throw error; })); return made.get(n); }; };
    const overview = embedded || await get('directories.json');
    const load = keep(async (n) => (embedded ? embedded.data[n] : get(`data/${n}`)));
    const diffs = keep(async (n) => (embedded ? embedded.diffs[n] : get(`diffs/${n}`)));
    const [panel, bar, choice, theme] = ['panel', 'tabs', 'directory', 'theme'].map((id) => document.getElementById(id));
    const state = { number: 0, netron: overview.netron, embedded: Boolean(embedded), diffs: () => diffs(state.number),
        all: () => Promise.all(overview.labels.map((_, n) => load(n))) };
    let current = PV.tabs.find((tab) => `#${tab.key}` === location.hash) || PV.tabs[0];

    const setTheme = (name) => { document.documentElement.dataset.theme = name; };
    setTheme(matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
    theme.addEventListener('click', () => setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'));

    const buttons = PV.tabs.map((tab) => PV.el('button', { type: 'button', role: 'tab', id: `tab-${tab.key}`, 'aria-controls': 'panel', onclick: () => show(tab) }, tab.title));
    bar.append(...buttons);
    bar.addEventListener('keydown', (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = (PV.tabs.indexOf(current) + step + PV.tabs.length) % PV.tabs.length;
        buttons[next].focus();
        show(PV.tabs[next]);
    });
    overview.labels.forEach((label, n) => choice.append(PV.el('option', { value: n }, label)));
    choice.hidden = overview.labels.length < 2;
    choice.addEventListener('change', () => { state.number = Number(choice.value); show(current); });

    let turn = 0;
    async function show(tab) {
        const mine = turn += 1;
        current = tab;
        history.replaceState(null, '', `#${tab.key}`);
        buttons.forEach((button, i) => {
            button.setAttribute('aria-selected', PV.tabs[i] === tab ? 'true' : 'false');
            button.tabIndex = PV.tabs[i] === tab ? 0 : -1;
        });
        // A part that waits for data draws into a place of its own, which is out of the page once another tab is chosen.
        const content = PV.el('div', { class: 'content' });
        try {
            const data = await load(state.number);
            if (mine !== turn) return;
            panel.className = tab.fill ? 'fill' : '';
            panel.setAttribute('aria-labelledby', `tab-${tab.key}`);
            panel.replaceChildren(content);
            await tab.show(content, data, state);
            if (mine === turn) document.title = `${data.label}: ${tab.title} – pfvm view`;
        } catch (error) {
            const why = error instanceof TypeError ? `the files of this part are not as pfvm writes them: ${error.message}` : error.message;
            content.replaceChildren(PV.note(why, 'error'));
            if (mine === turn) panel.replaceChildren(content);
        }
    }
    await show(current);
})();
