<?php
// Takes jobs of a queue.  usage: example.php DSN QUEUE
require __DIR__ . '/Jobq.php';

function make_thumbnail(Jobq\Job $job): array
{
	if (!isset($job->payload['image']))
		throw new Jobq\Reject('no image');
	if (date('G') == ($job->payload['not_at'] ?? ''))
		throw new Jobq\Release(600);
	for ($ms = 0; $ms < ($job->payload['ms'] ?? 0); $ms += 100) {
		usleep(100000);
		$job->check();		// ends it if somebody else may have the job
	}
	return ['file' => $job->payload['image'] . '.png'];
}

(new Jobq\Consumer($argv[1], [$argv[2]], make_thumbnail(...)))->run();
