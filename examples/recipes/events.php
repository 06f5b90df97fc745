<?php
// Server-sent events of a job, for a user of the application: events.php?job=7&until=1790000000&signature=...
require __DIR__ . '/../../libraries/php/Jobq.php';

['job' => $job, 'until' => $until, 'signature' => $signature] = $_GET + ['job' => '', 'until' => '', 'signature' => ''];
if (!hash_equals(hash_hmac('sha256', "$job $until", getenv('SECRET')), $signature) || $until < time()) {
	http_response_code(403);
	exit;
}
header('Content-Type: text/event-stream');
header('Cache-Control: no-store');
header('X-Accel-Buffering: no');
while (ob_get_level())
	ob_end_clean();
$db = new PDO('pgsql:');
for ($wait = 0, $last = ''; ; $wait = 1, $last = $event) {
	$status = Jobq\wait($db, (int) $job, $wait);
	$event = json_encode(['state' => $status->state, 'progress' => (float) $status->progress, 'message' => $status->message]);
	echo $event == $last ? ": still there\n\n" : "data: $event\n\n";
	flush();
	if ($status->finished_at)
		break;
}
