<?php
// Makes thumbnails.  usage: example.php DSN QUEUE
require __DIR__ . '/Jobq.php';

function make(Jobq\Job $job): array
{
	if (!isset($job->payload['image']))
		throw new Jobq\Reject('no image');
	$job->check();		// throws an exception if another consumer may have the job
	return ['file' => $job->payload['image'] . '.png'];
}

$handlers = ['thumbnail.make' => make(...)];
(new Jobq\Consumer($argv[1], [$argv[2]], $handlers, stopTimeout: 20))->run();
