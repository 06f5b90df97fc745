<?php
// Unit tests of handlers with the queue for unit tests of the library for PHP; they need no
// database.
require __DIR__ . '/../../libraries/php/Jobq.php';

use Jobq\{FakeQueue, Job, Reject, Release, Retry};

use function Jobq\{enqueue, enqueue_many, status, wait};

function same(mixed $got, mixed $expected): void
{
	if ($got !== $expected)
		throw new Exception(json_encode($got) . ' is not ' . json_encode($expected));
}

$shown = fn ($job) => "$job->state $job->attempt $job->error $job->delay";
$queue = new FakeQueue([
	'mail' => function (Job $job) use (&$queue) {
		if ($job->payload['to'] == 'nobody')
			throw new Reject('no such recipient');
		if ($job->payload['to'] == 'away')
			throw new Release(600);
		if ($job->payload['to'] == 'busy' && $job->attempt == 1)
			throw new Retry(5, 'busy');
		$job->progress(50, 'half');
		$job->log('sent', 'warning');
		enqueue($queue, 'note', ['of' => $job->id]);
		return ['to' => $job->payload['to'], 'trace' => $job->headers['trace']];
	},
	'note' => fn () => throw new RangeException('no note'),
]);
$ids = [enqueue($queue, 'mail', ['to' => 'Ann'], headers: ['trace' => 'x'], queue: 'out'),
	...enqueue_many($queue, 'mail', [['to' => 'nobody'], ['to' => 'away'], ['to' => 'busy']], headers: ['trace' => 'y'], delay: '1 min'),
	enqueue($queue, 'other')];
same($ids, [1, 2, 3, 4, 5]);
same(array_column($queue->jobs, 'state'), ['ready', 'scheduled', 'scheduled', 'scheduled', 'ready']);
same([$queue->jobs[1]->options['delay'], $queue->jobs[0]->queue, $queue->jobs[4]->payload], ['1 min', 'out', []]);
$queue->run();
same($shown(status($queue, 1)), 'completed 1  ');
same($queue->jobs[0]->result, ['to' => 'Ann', 'trace' => 'x']);
same([$queue->jobs[0]->progress, $queue->jobs[0]->message, $queue->jobs[0]->log], [50.0, 'half', [['warning', 'sent']]]);
same(array_map($shown, array_slice($queue->jobs, 1, 5)),
	['dead 1 no such recipient ', 'scheduled 0  600', 'scheduled 1 busy 5', 'scheduled 0  10', 'ready 0  ']);
for ($i = 0; $i < 3; $i++)
	$queue->run();
same($shown(wait($queue, 4)), 'completed 2  ');
same($shown($queue->jobs[5]), 'dead 3 RangeException: no note ');
try {
	enqueue($queue, 'mail', ['to' => "\xff"]);
	throw new Exception('a payload that is no JSON was taken');
} catch (JsonException) {
}
$uuid = '6F1C2A9E-1b3d-4c5e-8f70-1234567890ab';
$by_uuid = enqueue($queue, 'mail', ['to' => 'Bo'], options: ['uuid' => $uuid]);
same(status($queue, strtolower($uuid)), $queue->jobs[$by_uuid - 1]);
same(status($queue, (string) $by_uuid), $queue->jobs[$by_uuid - 1]);
foreach ([0, 99, '00000000-0000-4000-8000-000000000000', ''] as $unknown)
	try {
		status($queue, $unknown);
		throw new Exception("there is a job $unknown");
	} catch (\OutOfBoundsException $error) {
		same($error->getMessage(), "job $unknown does not exist");
	}
$own = new FakeQueue(function (Job $job) use (&$own) {
	$job->ack($own, ['own' => true]);
	return 'ignored';
});
enqueue($own, 'settle');
$own->run();
same([$own->jobs[0]->state, $own->jobs[0]->attempt, $own->jobs[0]->result], ['completed', 1, ['own' => true]]);
echo "all hold\n";
