<?php
// A consumer in PHP.  usage: consumer.php DSN QUEUE
[, $dsn, $queue] = $argv;
$lease = (int) (getenv('LEASE') ?: 30);
$db = new PDO($dsn, null, null, [PDO::PGSQL_ATTR_DISABLE_PREPARES => true]);	// for poolers
$say = fn ($call, ...$args) => $db->prepare("SELECT jobq.$call")->execute($args);

function work(string $kind, array $payload): array
{
	usleep(1000 * ($payload['ms'] ?? 0));
	return ['file' => ($payload['image'] ?? throw new Exception('no image')) . '.png'];
}

pcntl_sigprocmask(SIG_BLOCK, [SIGTERM]);		// and fetched: PHP forgets a signal that an exception follows
$stopped = function () { static $is; return $is = $is || @pcntl_sigtimedwait([SIGTERM], $info, 0, 1) > 0; };
pcntl_async_signals(true);
pcntl_signal(SIGALRM, function () use (&$held, $say, $lease) {		// the heartbeat
	foreach ($held as $id => $token)
		try { $say('extend(?::bigint, ?::bigint, ?)', $id, $token, "$lease s"); } catch (PDOException) { }
	pcntl_alarm(intdiv($lease, 2));
});
while (!$stopped()) {
	$jobs = $db->prepare("SELECT * FROM jobq.reserve(ARRAY[?], 5, ?, '5s', 'consumer.php')");
	$jobs->execute([$queue, "$lease s"]);
	$held = array_column($jobs = $jobs->fetchAll(PDO::FETCH_OBJ), 'token', 'id');		// id => token
	pcntl_alarm($jobs ? intdiv($lease, 2) : 0);
	foreach ($jobs as $job) {
		$more = [];
		try {
			if (!$stopped()) $more = ['ack', json_encode(work($job->kind, json_decode($job->payload, true)))];
		} catch (Throwable $e) { $more = ['nack', $e->getMessage()]; }
		try {
			if ($more) $say("$more[0](?::bigint, ?::bigint, ?)", $job->id, $job->token, $more[1]);
			else $say('release(?::bigint, ?::bigint)', $job->id, $job->token);		// not begun
		} catch (PDOException $e) { fprintf(STDERR, "%s\n", $e->getMessage()); }	// JQ011: the lease is over
		unset($held[$job->id]);
		pcntl_alarm(pcntl_alarm(0) ?: 1);		// it may have been forgotten
	}
}
