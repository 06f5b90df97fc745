<?php
// The web application.  Its users are no roles of the database: a user of a branch reaches only the batches of this
// branch.  (A real application takes the branch from the login, not from the path.)
//
//	POST /berlin/runs?month=2026-11-01	enqueues a month's invoices, and answers 202
//	GET  /berlin/runs/7			the progress, for clients that poll
//	GET  /berlin/runs/7/events		the progress as server-sent events, until the batch is over
//	POST /berlin/runs/7/repair		enters missing streets, and retries the dead letters
//	GET  /berlin/notifications
require __DIR__ . '/billing.php';

function answer(int $code, mixed $body): void
{
	http_response_code($code);
	header('Content-Type: application/json');
	echo json_encode($body), "\n";
}

/** The progress of a batch as server-sent events. */
function stream(PDO $db, string $branch, int $batch): void
{
	header('Content-Type: text/event-stream');
	header('Cache-Control: no-store');
	header('X-Accel-Buffering: no');		// for nginx in front of us
	while (ob_get_level())
		ob_end_clean();
	for ($wait = '0'; $status = status($db, $branch, $batch, $wait); $wait = '250 ms') {
		echo 'data: ', json_encode($status), "\n\n";
		flush();
		if (is_over($status))
			break;
	}
}

$path = parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH);
if ($path == '/') {
	readfile(__DIR__ . '/page.html');
	return;
}
[, $branch, $what, $run, $do] = explode('/', $path) + ['', '', '', '', ''];
$batch = (int) $run;
if (!in_array($branch, BRANCHES)) {
	answer(404, ['error' => 'there is no such branch']);
	return;
}
$db = connect();
if ($what == 'runs' && $run != '' && !status($db, $branch, $batch)) {
	answer(404, ['error' => 'the branch has no such run']);
	return;
}
switch ("$_SERVER[REQUEST_METHOD] $what" . ($run != '' ? " run $do" : '')) {
	case 'POST runs':
		$month = DateTime::createFromFormat('!Y-m-d', $_GET['month'] ?? '');
		if (!$month) {
			answer(422, ['error' => 'month is a day, such as 2026-11-01']);
			break;
		}
		$batch = start_billing($db, $branch, $month->format('Y-m-01'));
		header("Location: /$branch/runs/$batch");
		answer(202, ['batch' => $batch]);
		break;
	case 'GET runs run ':
		answer(200, status($db, $branch, $batch));
		break;
	case 'GET runs run events':
		stream($db, $branch, $batch);
		break;
	case 'POST runs run repair':
		answer(202, ['retried' => repair($db, $branch, $batch)]);
		break;
	case 'GET notifications':
		answer(200, notifications($db, $branch));
		break;
	default:
		answer(404, ['error' => 'there is nothing here']);
}
