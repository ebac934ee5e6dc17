'use strict';
// Totals, the roofline, the readings of what sources leave open, and the directories beside each other.
PV.tabs.push({ key: 'report', title: 'Report', show: async (panel, data, state) => {
    const report = data.report;
    if (!report) { panel.append(PV.note(data.errors.report || 'report.json is not in this directory: compile for a device that plans or schedules', 'error')); return; }
    const section = (title, ...parts) => PV.el('section', {}, PV.el('h2', {}, title), parts);
    const machine = report.machine || {};
    const moved = Object.fromEntries(Object.entries(report.bytes_moved || {}).map(([path, bytes]) => [path.replaceAll('_', ' '), bytes]));
    panel.append(PV.el('div', { class: 'columns' },
        section('Totals', PV.facts([
            ['Device', `${machine.title || machine.name}${report.emulated ? ' (emulated)' : ''}`],
            ['Operations', PV.number(report.flops)], ['Cycles', PV.number(report.vsm_cycles)],
            ['No total', report.cycles_missing],
            ['Clock', report.core_freq ? `${PV.number(report.core_freq)} MHz` : null],
            ['Time', report.time_us ? `${PV.number(report.time_us)} µs` : null],
            ['Rate', report.tflops ? `${PV.number(report.tflops)} of ${PV.number(report.peak_tflops)} Tflop/s (${PV.number(report.efficiency * 100)} %)` : null],
            ['Lower bound', report.lower_bound ? `${PV.number(report.lower_bound.cycles)} cycles, by ${report.lower_bound.resource}` : null],
            ['Scheduler', report.schedule && report.schedule.scheduler]])),
        section('Bytes moved', PV.bars({ label: 'Bytes moved by path', values: moved, format: PV.bytes, tone: 2 }))));
    const all = await state.all();
    panel.append(section('Roofline', PV.roofline(all.filter((each) => each.report))));
    if ((report.readings || []).length) panel.append(section('Where sources leave a figure open', PV.table([['Figure', ''], ['Reading', ''], ['Cycles', 'n'], ['Serial', 'n']],
        report.readings.flatMap((entry) => Object.entries(entry.readings).map(([name, found], i) => [i ? '' : entry.about, name, PV.number(found.vsm_cycles), PV.number(found.serial)])))));
    const peak = (each) => Object.entries(each.peak_memory || {}).map(([name, found]) => PV.el('div', {}, `${name} ${PV.bytes(found.bytes_per_cell)}`));
    panel.append(section('Devices beside each other', PV.table([['Directory', ''], ['Device', ''], ['Operations', 'n'], ['Bytes', 'n'], ['Cycles', 'n'], ['Time', 'n'], ['Most memory', '']],
        all.filter((each) => each.report).map((each) => [each.label, (each.report.machine || {}).title || '–', PV.number(each.report.flops), PV.bytes(PV.traffic(each.report)),
            PV.number(each.report.vsm_cycles), each.report.time_us ? `${PV.number(each.report.time_us)} µs` : '–', peak(each.report)])),
    all.length < 2 ? PV.note('pfvm view DIR OTHER compares directories here.') : null));
    if ((report.notes || []).length) panel.append(section('Notes', PV.el('ul', {}, report.notes.map((note) => PV.el('li', {}, note)))));
} });

// Bytes between DRAM and the chip; where a compiler tells no paths apart, all bytes that it accesses.
PV.traffic = (report) => {
    const { accessed } = report.bytes_moved || {};
    if (typeof accessed === 'number') return accessed || null; // what stands beside it is a part of it, or never waited for
    const moved = Object.entries(report.bytes_moved || {});
    const dram = moved.filter(([path]) => path.includes('DRAM'));
    return (dram.length ? dram : moved).reduce((sum, [, bytes]) => sum + bytes, 0) || null;
};

PV.roofline = (all) => {
    const points = all.map(({ label, report, plan }) => ({ label, intensity: report.flops && PV.traffic(report) ? report.flops / PV.traffic(report) : null,
        rate: report.tflops ? report.tflops * 1e12 : null, peak: report.peak_tflops ? report.peak_tflops * 1e12 : null, bandwidth: plan && plan.bandwidth }));
    const roofed = points.find((point) => point.peak && point.bandwidth);
    const lines = points.map((point) => PV.note(point.intensity === null ? `${point.label}: operations or bytes are not known`
        : `${point.label}: ${PV.number(point.intensity)} operations a byte${point.rate ? '' : '; its compiler states no time, so that it has no point'}`));
    if (!roofed) return [...lines, PV.note('There is no roof to draw: the device’s peak rate and the bandwidth of the memories that these bytes are in are not both known.')];
    const [W, H, left, bottom] = [620, 260, 74, 34];
    const ridge = roofed.peak / roofed.bandwidth;
    const known = points.filter((point) => point.intensity);
    const xs = [Math.min(ridge / 30, ...known.map((p) => p.intensity / 3)), Math.max(ridge * 30, ...known.map((p) => p.intensity * 3))].map(Math.log10);
    const ys = [Math.log10(Math.min(roofed.bandwidth * 10 ** xs[0], ...known.map((p) => p.rate || Infinity)) / 3), Math.log10(roofed.peak * 3)];
    const x = (value) => left + (W - left - 10) * ((Math.log10(value) - xs[0]) / (xs[1] - xs[0]));
    const y = (value) => H - bottom - (H - bottom - 10) * ((Math.log10(value) - ys[0]) / (ys[1] - ys[0]));
    const svg = PV.canvas(W, H, 'Roofline: rate over operations a byte');
    for (let e = Math.ceil(xs[0]); e <= xs[1]; e += 1) svg.append(PV.svg('line', { class: 'axis', x1: x(10 ** e), x2: x(10 ** e), y1: 10, y2: H - bottom }), PV.svg('text', { x: x(10 ** e), y: H - bottom + 14, 'text-anchor': 'middle' }, PV.number(10 ** e)));
    for (let e = Math.ceil(ys[0]); e <= ys[1]; e += 1) svg.append(PV.svg('line', { class: 'axis', x1: left, x2: W - 10, y1: y(10 ** e), y2: y(10 ** e) }), PV.svg('text', { x: left - 6, y: y(10 ** e) + 4, 'text-anchor': 'end' }, `${PV.number(10 ** (e - 12))} T`));
    svg.append(PV.svg('path', { class: 'line s0', d: `M${x(10 ** xs[0])} ${y(roofed.bandwidth * 10 ** xs[0])}L${x(ridge)} ${y(roofed.peak)}H${W - 10}` }),
        PV.svg('text', { x: W - 12, y: y(roofed.peak) - 6, 'text-anchor': 'end' }, `peak ${PV.number(roofed.peak / 1e12)} Tflop/s; DRAM ${PV.number(roofed.bandwidth / 1e9)} GB/s`),
        PV.svg('text', { x: W - 12, y: H - 4, 'text-anchor': 'end' }, 'operations a byte of DRAM'));
    known.filter((point) => point.rate).forEach((point, i) => svg.append(PV.svg('circle', { class: `f${(i + 1) % 7}`, cx: x(point.intensity), cy: y(point.rate), r: 5 }, PV.svg('title', {}, `${point.label}: ${PV.number(point.rate / 1e12)} Tflop/s`)),
        PV.svg('text', { class: 'strong', x: x(point.intensity) + 9, y: y(point.rate) + 4 }, point.label)));
    return [...lines, svg];
};
