'use strict';
// Plots in SVG. Every mark has a title, so that a pointer and a screen reader can ask for its number.
PV.nice = (top) => {
    if (!(top > 0)) return 1;
    const unit = 10 ** Math.floor(Math.log10(top));
    return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((step) => step * unit).find((step) => step >= top * 0.999);
};

// The same for bytes, whose units are 1,024 apart.
PV.niceBytes = (top) => {
    const unit = 1024 ** Math.max(0, Math.floor(Math.log2(top || 1) / 10));
    return Math.min(PV.nice(top / unit), 1024) * unit;
};

PV.canvas = (width, height, label) => {
    const svg = PV.svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label });
    svg.style.maxWidth = `${width * 1.15}px`;
    return svg;
};

PV.short = (name, most) => (name.length > most ? `${name.slice(0, most - 13)}…${name.slice(-12)}` : name);

PV.legend = (names, tone = 0) => PV.el('div', { class: 'legend' }, names.map((name, i) =>
    PV.el('span', {}, PV.el('span', { class: `swatch b${(i + tone) % 7}` }), name)));

// A step line for each series over positions. names: what a position is; mark: a horizontal line {value, text}.
PV.steps = ({ label, series, names = null, format = PV.number, tone = 0, mark = null, axis = '' }) => {
    const [W, H, left, bottom] = [440, 180, 62, 26];
    const svg = PV.canvas(W, H, label);
    const count = Math.max(...series.map((each) => each.points.length), 1);
    let peak = mark ? mark.value : 0;
    for (const each of series) for (const value of each.points) peak = Math.max(peak, value);
    const nice = (format === PV.bytes ? PV.niceBytes : PV.nice)(peak);
    const top = format === PV.number && nice % 2 === 1 ? nice + 1 : nice;  // the half of a count is one too
    const x = (i) => left + (W - left - 8) * (i / count);
    const y = (value) => H - bottom - (H - bottom - 12) * (value / top);
    for (const part of [0, 0.5, 1]) {
        svg.append(PV.svg('line', { class: 'axis', x1: left, x2: W - 8, y1: y(top * part), y2: y(top * part) }),
            PV.svg('text', { x: left - 6, y: y(top * part) + 4, 'text-anchor': 'end' }, format(top * part)));
    }
    series.forEach((each, s) => {
        const path = each.points.map((value, i) => `${i ? 'V' : 'M'}${i ? '' : `${x(0)} `}${y(value).toFixed(1)}H${x(i + 1).toFixed(1)}`).join('');
        svg.append(PV.svg('path', { class: `line s${(s + tone) % 7}`, d: path }));
        if (names) each.points.forEach((value, i) => svg.append(PV.svg('rect', { x: x(i), y: 0, width: x(1) - x(0), height: H - bottom, fill: 'transparent' },
            PV.svg('title', {}, `${names[i]}: ${format(value)}`))));
    });
    if (mark) {
        svg.append(PV.svg('line', { class: 'mark', x1: left, x2: W - 8, y1: y(mark.value), y2: y(mark.value) }),
            PV.svg('text', { x: W - 8, y: y(mark.value) - 4, 'text-anchor': 'end' }, mark.text));
    }
    const ends = names ? [names[0], names.at(-1)] : ['0', `${count}${axis}`];
    svg.append(PV.svg('text', { x: left, y: H - 8 }, ends[0]), PV.svg('text', { x: W - 8, y: H - 8, 'text-anchor': 'end' }, ends[1]));
    return PV.el('div', {}, series.length > 1 ? PV.legend(series.map((each) => each.name), tone) : null, svg);
};

// Horizontal bars, largest first, at most `most`. mark: a vertical line.
PV.bars = ({ label, values, format = PV.number, tone = 0, mark = null, most = 16 }) => {
    const sorted = Object.entries(values).sort((a, b) => b[1] - a[1]);
    const shown = sorted.slice(0, most);
    const longest = Math.max(...shown.map(([name]) => Math.min(name.length, 31)), 8);
    const [W, row, left] = [560, 22, 18 + longest * 7.2];
    const H = shown.length * row + (mark ? 18 : 4);
    const svg = PV.canvas(W, H, label);
    const top = Math.max(...shown.map(([, value]) => value), mark ? mark.value : 0, 1e-30);
    const x = (value) => left + (W - left - 74) * (value / top);
    shown.forEach(([name, value], i) => {
        const short = PV.short(name, 31);
        svg.append(PV.svg('text', { x: left - 8, y: i * row + 15, 'text-anchor': 'end', class: 'strong' }, short, PV.svg('title', {}, name)),
            PV.svg('rect', { class: `f${tone}`, x: left, y: i * row + 4, width: Math.max(1, x(value) - left), height: row - 8, rx: 2 }, PV.svg('title', {}, `${name}: ${format(value)}`)),
            PV.svg('text', { x: x(value) + 6, y: i * row + 15 }, format(value)));
    });
    if (mark) {
        svg.append(PV.svg('line', { class: 'mark', x1: x(mark.value), x2: x(mark.value), y1: 0, y2: H - 16 }),
            PV.svg('text', { x: x(mark.value), y: H - 3, 'text-anchor': 'end' }, mark.text));
    }
    return PV.el('div', {}, svg, sorted.length > most ? PV.note(`and ${sorted.length - most} more`) : null);
};
