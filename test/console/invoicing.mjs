// The page of examples/invoicing, with the month 2026-12: invoicing.mjs URL.

import { Browser } from './browser.mjs';

const browser = new Browser();

try {
	const page = await browser.page(process.argv[2], 800, 900);

	await page.until('the page has its branches', 'document.querySelectorAll("section").length === 3');
	await page.value('document.getElementById("month").value = "2026-12"');
	for (const branch of ['berlin', 'madrid']) {
		await page.value(`window.section = [...document.querySelectorAll("section")].find((one) => one.querySelector("h2").textContent === "${branch}")`);
		await page.value('section.querySelector(".start").click()');
		await page.until(`${branch}: the end is shown`, 'section.querySelector(".state").textContent === "completed: 200 of 200 written, 0 failed"');
		await page.until(`${branch}: so is the progress`, 'section.querySelector("progress").value === 100');
		await page.until(`${branch}: and the notification`, 'section.querySelector("li").textContent === "2026-12-01: 200 invoices are written, 0 failed"');
	}
	console.log('the page shows the progress of two branches');
} finally {
	await browser.close();
}
