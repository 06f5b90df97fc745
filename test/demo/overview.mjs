// A picture of the console's overview: overview.mjs URL ROLE PASSWORD FILE.

import { writeFileSync } from 'node:fs';
import { Browser } from '../console/browser.mjs';

const [url, role, password, file] = process.argv.slice(2);
const browser = new Browser();

try {
	const page = await browser.page(url, 1200, 850);

	await page.shows('Log in to jobq');
	await page.until('the focus is where to type', 'document.activeElement.name === "role"');
	await page.type(role);
	await page.key('Tab', 9);
	await page.type(password);
	await page.key('Enter', 13);
	await page.until('the charts', 'document.querySelectorAll("main svg").length >= 4 && !document.querySelector(".loading")');
	writeFileSync(file, await page.picture());
} finally {
	await browser.close();
}
