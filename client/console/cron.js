// The expression of a schedule in words.  Expressions that the words would not describe completely
// have none: the page then shows only the expression, and the next ticks.

const months = ['January', 'February', 'March', 'April', 'May', 'June', 'July', 'August', 'September', 'October', 'November', 'December'];
const days = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday', 'Sunday'];
const shortcuts = {
	'@hourly': '0 * * * *', '@daily': '0 0 * * *', '@midnight': '0 0 * * *', '@weekly': '0 0 * * 0', '@monthly': '0 0 1 * *', '@yearly': '0 0 1 1 *', '@annually': '0 0 1 1 *',
};

const all = (list) => list.length < 2 ? list.join('') : `${list.slice(0, -1).join(', ')} and ${list.at(-1)}`;
const two = (n) => String(n).padStart(2, '0');
const isAny = (field) => field === '*' || field === '?';

// The number of a name in a list, or of digits; null for anything else.
function value(text, names) {
	const named = names ? names.findIndex((name) => name.slice(0, 3).toLowerCase() === text.toLowerCase()) : -1;

	return /^\d+$/.test(text) ? Number(text) : named >= 0 ? named + (names === months ? 1 : 0) : null;
}

// The parts of a field: { from, to } with numbers; null if there is a part of another form.
function parts(field, names) {
	const list = field.split(',').map((part) => {
		const [from, to, more] = part.split('-').map((end) => value(end, names));

		return more === undefined && from !== null && to !== null ? { from, to: to ?? from } : null;
	});

	return list.includes(null) ? null : list;
}

const describe = (list, text) => all(list.map(({ from, to }) => from === to ? text(from) : `${text(from)} to ${text(to)}`));
const numbers = (list) => list?.every(({ from, to }) => from === to) ? list.map(({ from }) => from) : null;

// The step of a field, if it divides the range of the field: otherwise the last step is shorter.
function step(field, range) {
	const n = Number(/^\*\/(\d+)$/.exec(field)?.[1]);

	return n > 1 && range % n === 0 ? n : null;
}

// The times of a day.
function times(second, minute, hour) {
	const [s, m, h] = [second, minute, hour].map((field) => numbers(parts(field)));
	const seconds = s?.length === 1 ? s[0] : null;
	const tail = seconds === 0 ? '' : `:${two(seconds)}`;

	if (seconds === null)
		return isAny(second) && isAny(minute) && isAny(hour) ? 'every second' : step(second, 60) && isAny(minute) && isAny(hour) ? `every ${step(second, 60)} seconds` : null;
	if (m && h && m.length * h.length <= 6)
		return `at ${all(h.flatMap((hours) => m.map((minutes) => `${two(hours)}:${two(minutes)}${tail}`)))}`;
	if (seconds !== 0)
		return null;
	const hours = isAny(hour) ? '' : step(hour, 24) ? ` of every ${step(hour, 24)} hours` : parts(hour) ? ` from ${all(parts(hour).map(({ from, to }) => `${two(from)}:00 to ${two(to)}:59`))}` : null;

	if (hours === null)
		return null;
	if (isAny(minute))
		return `every minute${hours.replace(' of every', ', every')}`;
	if (step(minute, 60))
		return `every ${step(minute, 60)} minutes${hours.replace(' of every', ', every')}`;
	return m ? hours === '' ? `every hour at ${all(m.map((n) => `:${two(n)}`))}` : step(hour, 24) ? `every ${step(hour, 24)} hours at ${all(m.map((n) => `:${two(n)}`))}`
		: `at ${all(m.map((n) => `:${two(n)}`))} of the hours ${describe(parts(hour), String)}` : null;
}

// The days, as " on ..."; '' means every day, and null none of these forms.
function dates(day, month, weekday) {
	const inMonth = isAny(month) ? '' : parts(month, months) ? ` in ${describe(parts(month, months), (n) => months[n - 1])}` : null;
	const onDay = isAny(day) ? '' : day.toLowerCase() === 'l' ? 'the last day of the month' : parts(day) ? `day ${describe(parts(day), String)} of the month` : null;
	const onWeekday = isAny(weekday) ? '' : parts(weekday, days) ? describe(parts(weekday, days), (n) => days[n]) : null;

	if (inMonth === null || onDay === null || onWeekday === null)
		return null;
	const on = [onDay, onWeekday].filter(Boolean).join(', and on ');

	return (on ? ` on ${on}` : inMonth ? ' every day' : '') + inMonth;
}

export function words(expression) {
	const text = expression.trim().replace(/\s+/g, ' ');

	if (/^@?every /i.test(text))
		return text.replace(/^@?e/i, 'E');
	const fields = (shortcuts[text.toLowerCase()] ?? text).split(' ');

	if (fields.length < 5 || fields.length > 6 || /^rrule|^dtstart/i.test(text))
		return '';
	const [second, minute, hour, day, month, weekday] = fields.length === 6 ? fields : ['0', ...fields];
	const time = times(second, minute, hour);
	const on = dates(day, month, weekday);

	if (time === null || on === null)
		return '';
	const whole = on === '' ? time.startsWith('every') ? time : `every day ${time}` : `${time}${on}`;

	return whole[0].toUpperCase() + whole.slice(1);
}
