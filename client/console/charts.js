// Charts and graphs of workflows, as SVG.  Each chart has the same data as a table.

import { count, date, h, hour, span, stateClass, svg, table } from './dom.js';
import { layout } from './layout.js';

const WIDTH = 480;
const HEIGHT = 170;
const LEFT = 76;
const BOTTOM = 24;
const TOP = 14;

// The next round number.
function ceiling(value) {
	if (value <= 0)
		return 1;
	const unit = 10 ** Math.floor(Math.log10(value));

	return [1, 2, 3, 4, 5, 6, 8, 10].find((n) => n * unit >= value) * unit;
}

// The axis for durations: all ticks have the same unit.
function durationAxis(seconds) {
	const [unit, name] = [[86400, 'days'], [3600, 'h'], [60, 'min'], [1, 's'], [0.001, 'ms']].find(([size], i) => seconds >= size * (i === 0 ? 2 : 1)) ?? [0.001, 'ms'];

	return { most: ceiling(seconds / unit) * unit, label: (tick) => tick === 0 ? '0' : `${Number((tick / unit).toPrecision(3))} ${name}` };
}

function frame(points, most, label, ...inside) {
	const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
	const ticks = [0, most / 2, most];
	const every = Math.ceil(points.length / 4);

	return [
		ticks.map((tick) => [
			svg('line', { class: 'grid', x1: LEFT, x2: WIDTH, y1: y(tick), y2: y(tick) }),
			svg('text', { x: LEFT - 6, y: y(tick) + 4, 'text-anchor': 'end' }, label(tick)),
		]),
		points.map((point, i) => i % every === 0
			? svg('text', { x: LEFT + (i + 0.5) * (WIDTH - LEFT) / points.length, y: HEIGHT - 4, 'text-anchor': 'middle' }, hour(point.at)) : null),
		inside,
	];
}

const known = (value) => value !== null && value !== undefined;

function box(title, unit, summary, legend, points, columns, drawing) {
	const heading = h('h2', {}, title, unit ? h('span', { class: 'faint unit' }, ` ${unit}`) : null);

	if (!drawing)
		return h('section', { class: 'card chart' }, heading, h('p', { class: 'empty' }, summary));
	return h('section', { class: 'card chart' },
		heading,
		svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': `${title}: ${summary}` }, drawing),
		h('ul', { class: 'legend' }, legend.map(([name, text]) => h('li', { class: name }, text))),
		h('details', {}, h('summary', {}, 'As a table'),
			table(title, [{ title: 'From', row: true, cell: (p) => hour(p.at) }, ...columns], points, (p) => p.at, 'Nothing.')));
}

// Stacked bars; a series with "line" is a line.  The unit is the unit of a point; the legend has
// sums.  A rare series is left out if it is empty.
export function bars(title, unit, points, all, empty) {
	const series = all.filter((s) => points.some((p) => s.rare ? p[s.member] > 0 : known(p[s.member])));
	const stacked = series.filter((s) => !s.line);
	const sums = points.map((p) => stacked.reduce((sum, s) => sum + (p[s.member] ?? 0), 0));
	const highest = Math.max(...sums, ...series.flatMap((s) => points.map((p) => p[s.member] ?? 0)), 0);
	const most = ceiling(Math.max(highest, 1));
	const step = (WIDTH - LEFT) / Math.max(points.length, 1);
	const scale = (HEIGHT - TOP - BOTTOM) / most;
	const total = (s) => points.reduce((sum, p) => sum + (p[s.member] ?? 0), 0);

	if (highest === 0)
		return box(title, null, empty);
	return box(title, unit, series.map((s) => `${count(total(s))} ${s.title}`).join(', '),
		series.map((s) => [s.line ? `${s.name} line` : s.name, `${s.title}: ${count(total(s))}`]), points,
		series.map((s) => ({ title: s.title, n: true, cell: (p) => count(p[s.member] ?? 0) })),
		frame(points, most, (tick) => Number.isInteger(tick) || tick >= 10 ? count(Math.round(tick)) : '', points.map((p, i) => {
			let y = HEIGHT - BOTTOM;

			return stacked.map((s) => {
				const height = (p[s.member] ?? 0) * scale;

				y -= height;
				return height > 0 ? svg('rect', { class: `${s.name}-fill`, x: LEFT + i * step + step * 0.1, y, width: step * 0.8, height: Math.max(height, 1) }) : null;
			});
		}), series.filter((s) => s.line).map((s) => svg('path', {
			class: `${s.name}-line`,
			d: points.map((p, i) => `${i === 0 ? 'M' : 'L'}${LEFT + (i + 0.5) * step} ${HEIGHT - BOTTOM - (p[s.member] ?? 0) * scale}`).join(''),
		}))));
}

export function lines(title, points, series, empty) {
	const { most, label } = durationAxis(Math.max(...points.flatMap((p) => series.map((s) => p[s.member] ?? 0)), 0.001));
	const step = (WIDTH - LEFT) / Math.max(points.length, 1);
	const x = (i) => LEFT + (i + 0.5) * step;
	const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
	const last = (s) => points.findLast((p) => known(p[s.member]))?.[s.member];

	if (series.every((s) => last(s) === undefined))
		return box(title, null, empty);
	return box(title, null, series.map((s) => `${s.title} ${span(last(s)) || 'unknown'}`).join(', '),
		series.map((s) => [s.name, `${s.title}: ${span(last(s)) || '–'} (latest)`]), points,
		series.map((s) => ({ title: s.title, n: true, cell: (p) => span(p[s.member]) })),
		frame(points, most, label, series.map((s) => {
			const has = (i) => known(points[i]?.[s.member]);
			let d = '';

			points.forEach((p, i) => {
				if (has(i))
					d += `${has(i - 1) ? 'L' : 'M'}${x(i)} ${y(p[s.member])}`;
			});
			return [
				svg('path', { class: `${s.name}-line`, d: d || 'M0 0' }),
				// a point without neighbours is not part of a line
				points.map((p, i) => has(i) && !has(i - 1) && !has(i + 1) ? svg('circle', { class: `${s.name}-fill`, cx: x(i), cy: y(p[s.member]), r: 3 }) : null),
			];
		})));
}

// The progress of a step with a job for each element of an array; '' for other steps.
export function elementsOf(step) {
	if (step.elements === null || step.elements === undefined)
		return '';
	return `${step.elements_completed} of ${step.elements}${step.elements_dead > 0 ? `, ${step.elements_dead} dead` : ''}`;
}

const MOST_STEPS = 1000;

// The last layout: a page is drawn more often than its workflow changes.
let laid = { key: null, plan: null };

function planOf(steps) {
	const key = JSON.stringify(steps.map((step) => [step.name, step.needs]));

	if (laid.key !== key)
		laid = { key, plan: layout(steps) };
	return laid.plan;
}

const short = (text, n) => text.length > n ? `${text.slice(0, n - 1)}…` : text;

// The state of a step, and a further fact.
function stepLine(step) {
	const ran = step.started_at && step.finished_at ? (date(step.finished_at) - date(step.started_at)) / 1000 : null;

	return [step.state, elementsOf(step) || (known(step.progress) && step.state === 'running' ? `${Math.round(step.progress)} %` : ran === null ? step.kind : span(ran))]
		.filter(Boolean).join(' · ');
}

// The path of an edge: straight beside steps, curved between two layers, with an arrow head.
function edgePath(points) {
	return points.map((to, i) => {
		if (i === 0)
			return `M${to.x} ${to.y}`;
		const from = points[i - 1];
		const half = (to.x - from.x) / 2;

		return from.y === to.y ? `L${to.x} ${to.y}` : `C${from.x + half} ${from.y} ${to.x - half} ${to.y} ${to.x} ${to.y}`;
	}).join('');
}

// The steps of a workflow as a graph (layout.js).
export function graph(steps) {
	const plan = steps.length > MOST_STEPS ? null : planOf(steps);

	if (plan === null)
		return h('p', { class: 'empty' }, `The workflow has ${count(steps.length)} steps. This is too much for a graph: see the table.`);
	return h('div', { class: 'graph', tabindex: '0', role: 'region', 'aria-label': 'The workflow as a graph' },
		svg('svg', { width: plan.width, height: plan.height, viewBox: `0 0 ${plan.width} ${plan.height}` },
			plan.edges.map(({ from, to, points }) => {
				const { x, y } = points.at(-1);

				return [
					svg('path', { class: 'edge', d: edgePath([...points.slice(0, -1), { x: x - 6, y }]) }, svg('title', {}, `${to} needs ${from}`)),
					svg('path', { class: 'head', d: `M${x} ${y}l-8 -4.5v9z` }),
				];
			}),
			steps.map((step) => {
				const { x, y, width, height } = plan.boxes.get(step.name);

				return svg('a', { href: `#/job/${step.job_id}`, class: stateClass(step.state), 'aria-label': `${step.name}: ${step.state}, job ${step.job_id}` },
					svg('title', {}, step.name),
					svg('rect', { x, y, width, height, rx: 6 }),
					svg('text', { x: x + 10, y: y + 21 }, short(step.name, 22)),
					svg('text', { class: 'sub', x: x + 10, y: y + 40 }, short(stepLine(step), 26)));
			})));
}
