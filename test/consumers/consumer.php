<?php
// The consumer of test/perl/JobqLibrary.pm, with the library for PHP.
//
// Its handler does what the payload says; it notes in a file with which token it has
// begun which job.
require __DIR__ . '/../../libraries/php/Jobq.php';

use Jobq\{Consumer, Job, LeaseLost, Reject, Release, Retry};

$folder = getenv('FOLDER');
$note = fn ($what, $job) => file_put_contents("$folder/$what", "$job->id $job->token\n", FILE_APPEND);

$handle = function (Job $job) use ($folder, $note) {
	static $given_back = [];
	$do = $job->payload['do'] ?? '';

	$note('began', $job);
	if ($do == 'settle') {
		$db = new PDO('pgsql:');
		$db->beginTransaction();
		$db->prepare('INSERT INTO done VALUES (?)')->execute([$job->id]);
		if ($job->attempt == 1) {
			$job->ack($db);
			throw new Exception('undone');
		}
		$job->log('before');
		$job->ack($db, ['own' => true]);
		$note('settles', $job);
		while (!file_exists("$folder/go"))
			usleep(20000);
		$db->commit();
		$job->log('after');
		return 'ignored';
	}
	if ($do == 'fail')
		throw new Exception("no image\0");
	if ($do == 'odd')
		throw new Error("\xff");
	if ($do == 'reject')
		throw new Reject('this is no image');
	if ($do == 'retry' && $job->attempt == 1)
		throw new Retry(0.1, 'once more');
	if ($do == 'later' && !isset($given_back[$job->id])) {
		$given_back[$job->id] = true;
		throw new Release(1e-5);
	}
	if ($do == 'kill')
		posix_kill(getmypid(), SIGKILL);
	if ($do == 'work')
		usleep(2000);
	if ($do == 'tell') {
		$job->log('first line');
		$job->log("second \u{2028} line\0", 'warning');
		$job->progress(40, 'soon');
		$job->log(json_encode($job->context));
	}
	while (($do == 'hold' || $do == 'tell') && !file_exists("$folder/go")) {
		usleep(20000);
		if ($job->lost) {
			$note('lost', $job);
			break;
		}
	}
	while ($do == 'hang' && !file_exists("$folder/go"))
		usleep(20000);
	if ($do == 'clean up')
		try {
			while (true)
				usleep(20000);
		} catch (LeaseLost) {
			$note('told', $job);
			while (!file_exists("$folder/go"))
				usleep(20000);
		}
	if ($do == 'echo')
		return $job->payload['value'];
	return $do == 'bad result' ? "\0" : ['token' => $job->token, 'more' => str_repeat('x', $do == 'long result' ? 2000 : 1)];
};

$kinds = getenv('KINDS') ? array_fill_keys(explode(',', getenv('KINDS')), $handle) : $handle;
(new Consumer(getenv('CONNINFO') ?: 'pgsql:', explode(',', getenv('QUEUES')), $kinds,
	pause: 0.5, stopTimeout: getenv('STOP') ? (float) getenv('STOP') : null,
	batch: getenv('DEFAULTS') ? null : (int) (getenv('BATCH') ?: 10), lease: (float) (getenv('LEASE') ?: 60), heartbeat: 1,
	wait: (float) (getenv('WAIT') ?: 5), listen: getenv('LISTEN') ? 'pgsql:' . getenv('LISTEN') : null, name: getenv('NAME')))->run();
