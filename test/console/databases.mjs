// The console of two databases, north (first) and south: databases.mjs URL.

import { Browser } from './browser.mjs';

const browser = new Browser();
const chosen = 'document.getElementById("databases").selectedOptions[0]?.textContent';

try {
	const page = await browser.page(process.argv[2], 1000, 800);
	const logIn = async (password) => {
		await page.until('where to type', 'document.activeElement.name === "role"');
		await page.type('app');
		await page.value('document.querySelector("[name=password]").focus()');
		await page.type(password);
		await page.key('Enter', 13);
	};
	const choose = (name) => page.value(`(() => {
		const select = document.querySelector('form select') ?? document.getElementById('databases');

		select.value = [...select.options].find((o) => o.textContent === '${name}').value;
		select.dispatchEvent(new Event('change', { bubbles: true }));
	})()`);

	await page.until('the form names the databases', 'document.querySelector("form select")?.selectedOptions[0]?.textContent === "north"');
	await logIn('first');
	await page.until('the page names its database', `${chosen} === "north" && document.title.includes("north")`);
	await page.go('#/jobs?kind=a');
	await page.until('the list is filtered', 'document.title.includes("Jobs") && location.hash.includes("kind")');
	await choose('south');
	await page.until('the same list of the other database', 'location.pathname === "/db/south/" && location.hash === "#/jobs"');
	await page.until('the other database has a log-in of its own', 'document.querySelector("form select")?.selectedOptions[0]?.textContent === "south"');
	await logIn('second');
	await page.until('the other page names its database', `${chosen} === "south" && document.title.includes("south")`);
	await page.until('it has the job of its database', 'document.querySelector("tbody")?.textContent.includes("only_south")');
	await choose('north');
	await page.until('the way back', 'location.pathname === "/db/north/" && !document.querySelector("#bar").hidden');
	await page.until('the log-in is still valid', `${chosen} === "north" && !!document.querySelector("tbody, .empty") && !document.body.textContent.includes("only_south")`);
	if (page.errors.length > 0)
		throw new Error(page.errors.join('\n'));
	console.log('the console switches between databases');
} finally {
	await browser.close();
}
