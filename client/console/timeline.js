// Time from left to right: the steps of a workflow, or the attempts of a job.

import { at, count, date, h, span, svg } from './dom.js';

const WIDTH = 960;
const LEFT = 190;
const ROW = 24;
const TOP = 8;
const MOST_ROWS = 100;

const short = (text, n) => text.length > n ? `${text.slice(0, n - 1)}…` : text;

// The distances of ticks: at most six, and each is a round time.
const distances = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400, 2 * 86400, 7 * 86400, 30 * 86400, 365 * 86400];

// Rows have: name; to, the address of the link; spans, with from, until (dates), name (the class), and
// title.  A time before the first span is not shown.
export function timeline(title, rows) {
	const shown = rows.filter((row) => row.spans.length > 0).slice(0, MOST_ROWS);
	const spans = shown.flatMap((row) => row.spans);

	if (spans.length === 0)
		return null;
	const begin = Math.min(...spans.map((s) => s.from));
	const length = Math.max(Math.max(...spans.map((s) => s.until)) - begin, 1) / 1000;
	const distance = distances.find((d) => length / d <= 6) ?? length / 4;
	const x = (moment) => LEFT + (WIDTH - LEFT - 10) * (moment - begin) / 1000 / length;
	const height = TOP + ROW * shown.length + 26;
	const ticks = Array.from({ length: Math.floor(length / distance) + 1 }, (_, i) => i * distance);
	const unit = distance < 1 ? (s) => `${Math.round(s * 1000)} ms` : (s) => s === 0 ? '0' : s < 60 ? `${s} s` : span(s);

	return h('section', { class: 'card' }, h('h2', {}, title),
		h('div', { class: 'timeline', tabindex: '0', role: 'region', 'aria-label': title },
			svg('svg', { viewBox: `0 0 ${WIDTH} ${height}` },
				ticks.map((s) => [
					svg('line', { class: 'grid', x1: x(begin + s * 1000), x2: x(begin + s * 1000), y1: TOP, y2: height - 22 }),
					svg('text', { class: 'sub', x: x(begin + s * 1000), y: height - 6, 'text-anchor': 'middle' }, unit(s)),
				]),
				shown.map((row, i) => {
					const y = TOP + i * ROW;
					const label = svg('text', { x: 4, y: y + 16 }, short(row.name, 26), svg('title', {}, row.name));

					return [row.to ? svg('a', { href: row.to }, label) : label, row.spans.map((s) => svg('rect', {
						class: `${s.name || 'neutral'}-fill`, x: x(s.from), y: y + 4, width: Math.max(x(s.until) - x(s.from), 2), height: ROW - 8, rx: 3,
					}, svg('title', {}, s.title)))];
				}))),
		h('p', { class: 'faint' }, `Begins at ${at(new Date(begin).toISOString())}.`, rows.length > MOST_ROWS ? ` The first ${count(MOST_ROWS)} of ${count(rows.length)} are shown.` : ''));
}

const names = { completed: 'good', dead: 'bad', running: 'busy', cancelled: 'neutral', expired: 'warn' };
const took = (s) => span((s.until - s.from) / 1000) || 'less than 1 ms';

// The last attempt of each started step of a workflow.
export const timelineOfSteps = (steps) => timeline('Timeline', steps.filter((step) => step.started_at).map((step) => {
	const run = { from: date(step.started_at), until: step.finished_at ? date(step.finished_at) : new Date(), name: names[step.state] };

	return { name: step.name, to: `#/job/${step.job_id}`, spans: [{ ...run, title: `${step.name}: ${step.state}, ${took(run)}` }] };
}).sort((a, b) => a.spans[0].from - b.spans[0].from));

// The attempts of a job, and the waiting time before each attempt.
export function timelineOfJob(job) {
	const failed = (job.errors ?? []).filter((e) => e.started_at).map((e) => ({ attempt: e.attempt, from: date(e.started_at), until: date(e.at), name: 'bad', how: 'failed' }));
	const last = job.started_at && job.state !== 'dead' ? [{
		attempt: job.attempt, from: date(job.started_at), until: job.finished_at ? date(job.finished_at) : new Date(), name: names[job.state] ?? 'busy', how: job.state,
	}] : [];
	const attempts = [...failed, ...last].filter((a) => a.from && a.until);
	let since = date(job.enqueued_at);

	return attempts.length === 0 || !since ? null : timeline('Timeline', attempts.map((a) => {
		const wait = { from: Math.min(since, a.from), until: a.from };

		since = a.until;
		return { name: `attempt ${a.attempt}`, spans: [{ ...wait, name: 'soft', title: `waited ${took(wait)}` }, { ...a, title: `attempt ${a.attempt}: ${a.how}, ${took(a)}` }] };
	}));
}
