// Messages, questions, and files for the user.

import { h, show } from './dom.js';

const $ = (id) => document.getElementById(id);
let pending = null;				// the open dialog: { act, done }

export function toast(text, bad) {
	const box = h('div', { class: bad ? 'toast bad' : 'toast', role: bad ? 'alert' : null }, text);

	$('toasts').append(box);
	setTimeout(() => box.remove(), bad ? 12000 : 5000);
}

// The progress of an action; '' ends it.
export function note(text) {
	$('note').textContent = text;
	$('note').hidden = text === '';
}

// Let the browser store a file.
export function save(file, name) {
	const link = h('a', { href: URL.createObjectURL(file), download: name });

	link.click();
	setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// Put a text into the clipboard.  A page without TLS from another machine has no navigator.clipboard.
export async function copy(text) {
	if (navigator.clipboard) {
		await navigator.clipboard.writeText(text);
		return;
	}
	const area = h('textarea', {}, text);

	$('toasts').append(area);
	area.select();
	document.execCommand('copy');
	area.remove();
}

export const problemText = (problem) => [problem.message, problem.hint].filter(Boolean).join(' ');

// A question.  The answer "yes" calls act(values) with the values of the inputs, and closes the dialog
// unless act raises an error.  Returns the result of act; undefined if the answer is no.
export function dialog(title, body, yes, { danger, act } = {}) {
	$('dialog-title').textContent = title;
	// an input of the dialog before, with the same name, would keep its value
	$('dialog-body').replaceChildren();
	show($('dialog-body'), ...[body].flat().map((part) => typeof part === 'string' ? h('p', {}, part) : part));
	$('dialog-yes').textContent = yes;
	$('dialog-yes').className = danger ? 'main danger' : 'main';
	$('dialog-yes').disabled = false;
	$('dialog-problem').textContent = '';
	$('dialog').showModal();
	$('dialog-body').querySelector('input, textarea, select')?.focus();
	return new Promise((done) => {
		pending = { act: act ?? (() => true), done };
	});
}

// A label with an input in a dialog or a form.
export const labelled = (title, input, help) => h('label', { class: 'field', 'data-key': title }, h('span', {}, title), input, help ? h('small', { class: 'faint' }, help) : null);

$('dialog-form').addEventListener('submit', async (event) => {
	if (event.submitter?.value === 'no')
		return;
	event.preventDefault();
	$('dialog-yes').disabled = true;
	$('dialog-problem').textContent = '';
	try {
		const { act, done } = pending;
		const result = await act(Object.fromEntries(new FormData(event.target)));

		pending = null;
		$('dialog').close();
		done(result ?? true);
	} catch (problem) {
		$('dialog-problem').textContent = problemText(problem);
	}
	$('dialog-yes').disabled = false;
});
$('dialog').addEventListener('close', () => {
	pending?.done(undefined);
	pending = null;
});
