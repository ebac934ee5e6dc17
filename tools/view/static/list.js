'use strict';
// A list of any length with only the rows in sight in the document, a listbox to the keyboard and to screen readers.
PV.ROW = 24;
PV.listCount = 0;

// items: any array. draw(item) → children of a row. chosen(item, index) is called on a click, Enter and arrow keys.
PV.list = ({ label, draw, chosen }) => {
    const prefix = `list${PV.listCount += 1}-`;
    const rows = PV.el('div', { class: 'rows' });
    const box = PV.el('div', { class: 'list', role: 'listbox', tabindex: 0, 'aria-label': label }, rows);
    let items = [];
    let selected = -1;
    const shown = new Map();

    const row = (index) => {
        const element = PV.el('div', { class: 'row', role: 'option', id: prefix + index, 'aria-posinset': index + 1,
            'aria-setsize': items.length, 'aria-selected': index === selected ? 'true' : 'false' }, draw(items[index]));
        element.style.top = `${index * PV.ROW}px`;
        element.dataset.index = index;
        return element;
    };
    const paint = () => {
        const first = Math.max(0, Math.floor(box.scrollTop / PV.ROW) - 10);
        const last = Math.min(items.length, Math.ceil((box.scrollTop + Math.min(box.clientHeight, 2400)) / PV.ROW) + 10);
        for (const [index, element] of shown) {
            if (index < first || index >= last) { element.remove(); shown.delete(index); }
        }
        for (let index = first; index < last; index += 1) {
            if (!shown.has(index)) { const made = row(index); shown.set(index, made); rows.append(made); }
        }
    };
    const repaint = () => { shown.clear(); rows.replaceChildren(); paint(); };
    let asked = false;
    box.addEventListener('scroll', () => {
        if (!asked) { asked = true; requestAnimationFrame(() => { asked = false; paint(); }); }
    }, { passive: true });
    new ResizeObserver(paint).observe(box);

    const select = (index, tell = true) => {
        if (index < 0 || index >= items.length) return;
        shown.get(selected)?.setAttribute('aria-selected', 'false');
        selected = index;
        const top = index * PV.ROW;
        if (top < box.scrollTop) box.scrollTop = top;
        else if (top + PV.ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + PV.ROW - box.clientHeight;
        paint();
        shown.get(index)?.setAttribute('aria-selected', 'true');
        box.setAttribute('aria-activedescendant', prefix + index);
        if (tell && chosen) chosen(items[index], index);
    };
    rows.addEventListener('click', (event) => {
        const hit = event.target.closest('.row');
        if (hit) select(Number(hit.dataset.index));
    });
    box.addEventListener('keydown', (event) => {
        const page = Math.max(1, Math.floor(box.clientHeight / PV.ROW) - 1);
        const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -items.length, End: items.length };
        if (!(event.key in steps)) return;
        event.preventDefault();
        select(Math.min(items.length - 1, Math.max(0, selected + steps[event.key])));
    });
    return {
        box, select,
        set: (next) => {
            items = next; selected = -1; box.scrollTop = 0; box.removeAttribute('aria-activedescendant');
            rows.style.height = `${items.length * PV.ROW}px`;
            repaint();
        },
    };
};

// A list with a search field and a count. text(item) is what is searched; every word must occur.
PV.searchable = ({ label, items, text, draw, chosen, controls = [] }) => {
    const list = PV.list({ label, draw, chosen });
    const count = PV.el('span', { class: 'note', 'aria-live': 'polite' });
    const field = PV.el('input', { type: 'search', placeholder: `Search ${label.toLowerCase()}`, 'aria-label': `Search ${label.toLowerCase()}` });
    const texts = items.map((item) => text(item).toLowerCase());
    let found = items;
    const search = () => {
        const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
        found = words.length ? items.filter((_, i) => words.every((word) => texts[i].includes(word))) : items;
        count.textContent = found.length === items.length ? `${items.length}` : `${found.length} of ${items.length}`;
        list.set(found);
    };
    field.addEventListener('input', search);
    search();
    return {
        parts: [PV.el('div', { class: 'bar' }, controls, field, count), list.box],
        show: (item) => {
            if (!found.includes(item)) { field.value = ''; search(); }
            list.select(found.indexOf(item));
        },
    };
};
