<?php
// The scenarios of laravel_outcomes.php.
namespace Tests;

use Illuminate\Queue\CallQueuedClosure;
use Illuminate\Queue\Middleware\RateLimited;
use Illuminate\Queue\Middleware\ThrottlesExceptions;
use Illuminate\Queue\Middleware\WithoutOverlapping;
use Illuminate\Support\Carbon;
use Illuminate\Cache\RateLimiting\Limit;

// ------------------------------------------------------------ dispatch

scenario('an object', function () { dispatch(new Work); run(); idle(); });
scenario('a class and data', function () { queue()->push('Tests\Plain@go', ['a' => ["\0b", 1.5, []]]); run(); });
scenario('a closure', function () { dispatch(CallQueuedClosure::create($GLOBALS['called'])); run(); });
scenario('a closure that fails', function () { dispatch(CallQueuedClosure::create($GLOBALS['throws'])->onFailure($GLOBALS['caught'])); run(); });
scenario('dispatchSync', function () { app(\Illuminate\Contracts\Bus\Dispatcher::class)->dispatchSync(new Work); });
scenario('dispatchNow', function () { app(\Illuminate\Contracts\Bus\Dispatcher::class)->dispatchNow(new Work); });
scenario('the connection sync', function () { dispatch((new Work)->onConnection('sync')); });
scenario('an encrypted job', function () { dispatch(new Secret); run(); });
scenario('a payload of 1 MB', function () { dispatch(new Work('done', [], str_repeat('x', 1000000))); run(); });
scenario('a job that enqueues', function () { dispatch(new Work('enqueues')); run(2); });
scenario('bulk', function () { queue()->bulk(array_fill(0, 500, new Work)); note(sizes()); });
scenario('bulk with delays', function () { queue()->bulk([(new Work)->delay(60), new Work]); run(); idle(); advance(60); run(); });
scenario('pushOn, laterOn', function () { queue()->pushOn('high', new Work); queue()->laterOn('high', 60, new Work); note(sizes()); run(1, 'high'); });

// ------------------------------------------------------------ delay, queues

scenario('delay in seconds', function () { dispatch((new Work)->delay(60)); idle(); advance(61); run(); });
scenario('delay until', function () { dispatch((new Work)->delay(Carbon::now()->addMinutes(10))); idle(); advance(601); run(); });
scenario('delay by an interval', function () { dispatch((new Work)->delay(new \DateInterval('PT2M'))); idle(); advance(121); run(); });
scenario('delay in the past', function () { dispatch((new Work)->delay(Carbon::now()->subMinute())); run(); });
scenario('onQueue', function () { dispatch((new Work)->onQueue('high')); idle(); run(1, 'high'); });
scenario('queues in order', function () {
	dispatch(new Work('fails'));
	dispatch((new Work('deletes'))->onQueue('high'));
	foreach ([1, 2] as $n) {
		worker()->runNextJob('look', 'high,default', options());
		note(sizes());
	}
});
scenario('first in, first out', function () {
	foreach ([1, 2, 3] as $n)
		queue()->push('Tests\Plain@go', [$n]);
	run(3);
});

// ------------------------------------------------------------ transactions

scenario('a rollback', function () {
	$GLOBALS['db']->beginTransaction();
	dispatch(new Work);
	$GLOBALS['db']->rollBack();
	idle();
});
scenario('a commit', function () { $GLOBALS['db']->transaction(fn () => dispatch(new Work)); run(); });
scenario('afterCommit and a rollback', function () {
	$GLOBALS['db']->beginTransaction();
	dispatch((new Work)->afterCommit());
	$GLOBALS['db']->rollBack();
	idle();
});
scenario('afterCommit and a commit', function () { $GLOBALS['db']->transaction(fn () => dispatch((new Work)->afterCommit())); run(); });
scenario('a job with a transaction', function () { dispatch(new Work('transaction_open')); run(2); });
scenario('delete in a transaction', function () {
	dispatch(new Work('deletes_within', ['tries' => 5]));
	run();
	note('rows ' . Row::query()->where('text', 'nine')->count());
	idle();
	advance(91);
	run();
	note('rows ' . Row::query()->where('text', 'nine')->count());
	Row::query()->delete();
	advance(91);
	idle();
});

// ------------------------------------------------------------ attempts

scenario('one attempt by default', function () { dispatch(new Work('fails')); run(); idle(); });
scenario('$tries', function () { dispatch(new Work('fails', ['tries' => 3])); run(3); idle(); });
scenario('$tries and success', function () { dispatch(new Work('fails_twice', ['tries' => 3])); run(3); idle(); });
scenario('--tries', function () { dispatch(new Work('fails')); run(2, maxTries: 2); idle(); });
scenario('--tries=0', function () { dispatch(new Work('fails_five')); run(6, maxTries: 0); idle(); });
scenario('$backoff', function () { dispatch(new Work('fails', ['tries' => 2, 'backoff' => 30])); run(); idle(); advance(31); run(); });
scenario('backoff()', function () {
	dispatch(new Waits('fails', ['tries' => 5]));
	foreach ([2, 3, 4, 4] as $seconds) {
		run();
		advance($seconds);
	}
	run();
});
scenario('--backoff', function () { dispatch(new Work('fails')); run(maxTries: 2, backoff: 30); idle(); advance(31); run(maxTries: 2); });
scenario('$maxExceptions', function () { dispatch(new Work('fails', ['tries' => 5, 'maxExceptions' => 2])); run(2); idle(); });
scenario('$maxExceptions and releases', function () { dispatch(new Work('release_now', ['tries' => 5, 'maxExceptions' => 1])); run(3); idle(); });
scenario('retryUntil', function () {
	dispatch(new Until('fails', ['until' => Carbon::now()->getTimestamp() + 60, 'backoff' => 40]));
	run();
	advance(41);
	run();
	advance(41);
	run();
	idle();
});
scenario('release', function () { dispatch(new Work('release_now', ['tries' => 5])); run(3); idle(); });
scenario('release later', function () { dispatch(new Work('release_later', ['tries' => 5])); run(); idle(); advance(61); run(); });
scenario('releases are attempts', function () { dispatch(new Work('releases_always', ['tries' => 2])); run(3); idle(); });
scenario('release twice', function () { dispatch(new Work('release_twice', ['tries' => 5])); run(); });
scenario('delete after a release', function () { dispatch(new Work('release_delete', ['tries' => 5])); run(); });
scenario('release after fail', function () { dispatch(new Work('fail_release', ['tries' => 5])); run(); });
scenario('an exception after a release', function () { dispatch(new Work('release_throw', ['tries' => 1])); run(); });
scenario('fail with an exception', function () { dispatch(new Work('fail_with', ['tries' => 3])); run(); idle(); });
scenario('fail', function () { dispatch(new Work('fail_plainly')); run(); idle(); });
scenario('delete', function () { dispatch(new Work('deletes', ['tries' => 3])); run(); idle(); });
scenario('an exception after delete', function () { dispatch(new Work('delete_throw', ['tries' => 3])); run(); idle(); });
scenario('a worker that died', function () {
	dispatch(new Work('done', ['tries' => 2]));
	note('held ' . queue()->pop()->attempts());
	idle();
	advance(91);
	run();
});
scenario('a worker that died in the last attempt', function () {
	dispatch(new Work('done', ['tries' => 1]));
	queue()->pop();
	advance(91);
	run();
	idle();
});

// ------------------------------------------------------------ timeouts

scenario('$timeout', function () { dispatch(new Work('hangs', ['tries' => 2, 'timeout' => 1])); process(); advance(91); process(); });
scenario('--timeout', function () { dispatch(new Work('hangs', ['tries' => 1])); process(timeout: 1); });
scenario('$failOnTimeout', function () { dispatch(new Work('hangs', ['tries' => 5, 'timeout' => 1, 'failOnTimeout' => true])); process(); });

// ------------------------------------------------------------ unique jobs, middleware

scenario('ShouldBeUnique', function () { unique(new Unique); unique(new Unique); run(); unique(new Unique); });
scenario('ShouldBeUnique and a failure', function () { unique(new Unique('fails')); unique(new Unique); run(); unique(new Unique); });
scenario('ShouldBeUniqueUntilProcessing', function () { unique(new UniqueUntil); unique(new UniqueUntil); run(); unique(new UniqueUntil); });
scenario('WithoutOverlapping', function () {
	Middle::$layers = [(new WithoutOverlapping('one'))->releaseAfter(60)];
	$lock = $GLOBALS['cache']->lock('laravel-queue-overlap:Tests\Middle:one', 0);
	$lock->get();
	dispatch(new Middle('done', ['tries' => 3]));
	run();
	$lock->release();
	idle();
	advance(61);
	run();
});
scenario('WithoutOverlapping, dontRelease', function () {
	Middle::$layers = [(new WithoutOverlapping('one'))->dontRelease()];
	$GLOBALS['cache']->lock('laravel-queue-overlap:Tests\Middle:one', 0)->get();
	dispatch(new Middle);
	run();
	idle();
});
foreach (['RateLimited' => false, 'RateLimited, dontRelease' => true] as $name => $dont)
	scenario($name, function () use ($dont) {
		app(\Illuminate\Cache\RateLimiter::class)->for('mail', fn () => Limit::perMinute(1));
		Middle::$layers = [$dont ? (new RateLimited('mail'))->dontRelease() : new RateLimited('mail')];
		dispatch(new Middle('done', ['tries' => 5]));
		dispatch(new Middle('done', ['tries' => 5]));
		run(2);
		idle();
		advance(64);
		run($dont ? 0 : 1);
	});
scenario('ThrottlesExceptions', function () {
	Middle::$layers = [(new ThrottlesExceptions(1, 5))->by('mail')];
	dispatch(new Middle('fails_twice', ['tries' => 9]));
	run(2);
	idle();
	advance(304);
	run();
});

// ------------------------------------------------------------ chains, batches

scenario('a chain', function () { dispatch((new Work)->chain([new Work, new Work('deletes'), new Work])); run(4); idle(); });
scenario('a chain that fails', function () {
	$job = (new Work)->chain([new Work('fails'), new Work]);
	$job->chainCatchCallbacks = [\Illuminate\Queue\SerializableClosureFactory::make($GLOBALS['caught'])];
	dispatch($job);
	run(2);
	idle();
});
scenario('a chain in other queues', function () { dispatch((new Work)->chain([new Work])->allOnQueue('high')); run(2, 'high'); });
scenario('a batch', function () { batch([new Work, new Work])->dispatch(); run(2); idle(); });
scenario('a batch that fails', function () { batch([new Work('fails'), new Work('tells_batch')])->dispatch(); run(2); idle(); });
scenario('a batch that allows failures', function () { batch([new Work('fails'), new Work('tells_batch')])->allowFailures()->dispatch(); run(2); idle(); });
scenario('a batch that grows', function () { batch([new Work('adds')])->dispatch(); run(3); idle(); });
scenario('a batch that is cancelled', function () { batch([new Work('cancels'), new Work('tells_batch')])->dispatch(); run(2); });
scenario('a batch of chains', function () { batch([[new Work, new Work], [new Work]])->dispatch(); run(3); idle(); });
scenario('a batch in another queue', function () { batch([new Work])->onQueue('high')->dispatch(); run(1, 'high'); });
scenario('a batch of 500', function () { note('jobs ' . batch(array_fill(0, 500, new Work))->dispatch()->totalJobs); note(sizes()); });
scenario('a batch and a rollback', function () {
	$GLOBALS['db']->beginTransaction();
	batch([new Work])->dispatch();
	$GLOBALS['db']->rollBack();
	idle();
});

// ------------------------------------------------------------ models

$row = fn () => tap(new Row, function ($row) { $row->text = 'seven'; $row->save(); });
scenario('a model', function () use ($row) { dispatch(new OfRow($row())); Row::query()->update(['text' => 'eight']); run(); });
scenario('a model that is missing', function () use ($row) { dispatch(new OfRow($row())); Row::query()->delete(); run(); });
scenario('deleteWhenMissingModels', function () use ($row) { dispatch(new OfRowThatMayBeMissing($row())); Row::query()->delete(); run(); });

// ------------------------------------------------------------ queued listeners

$events->listen(Paid::class, SendReceipt::class);
scenario('a queued listener', function () { $GLOBALS['events']->dispatch(new Paid(7)); note(sizes()); advance(61); run(1, 'high'); });
scenario('a queued listener that is not asked for', function () { $GLOBALS['events']->dispatch(new Paid(0)); });
scenario('a queued listener that fails', function () { $GLOBALS['events']->dispatch(new Paid(13)); advance(61); run(1, 'high'); advance(61); run(1, 'high'); });

// ------------------------------------------------------------ the worker

scenario('--once', function () { dispatch(new Work); dispatch(new Work); run(); });
scenario('--stop-when-empty', function () { dispatch(new Work); dispatch(new Work); daemon(stopWhenEmpty: true); });
scenario('--max-jobs', function () { foreach ([1, 2, 3] as $n) dispatch(new Work); daemon(maxJobs: 2); });
scenario('--max-time', function () { dispatch(new Work); daemon(maxTime: 1); });
scenario('--memory', function () { dispatch(new Work); dispatch(new Work); daemon(memory: 1); });
scenario('queue:restart', function () { dispatch(new Work('restarts')); dispatch(new Work); daemon(); });
scenario('SIGTERM', function () { dispatch(new Work('terminates')); dispatch(new Work); daemon(); });
scenario('Looping', function () { listen('Looping', fn () => false); dispatch(new Work); daemon(maxTime: 1); });
scenario('events', function () {
	foreach (['JobQueued', 'JobProcessing', 'JobProcessed', 'JobExceptionOccurred', 'WorkerStopping'] as $event)
		listen($event, fn () => note($event));
	dispatch(new Work('fails_twice', ['tries' => 2]));
	dispatch(new Work);
	daemon(maxJobs: 3);
});

// ------------------------------------------------------------ commands

scenario('size', function () { dispatch(new Work); dispatch((new Work)->delay(60)); note(sizes()); queue()->pop(); note(sizes()); });
scenario('clear', function () { dispatch(new Work); dispatch((new Work)->delay(60)); note('cleared ' . queue()->clear('default')); idle(); });
scenario('queue:retry', function () { dispatch(new Work('fails')); run(); command('Retry', ['id' => [failed_id()]]); run(); });
scenario('queue:retry all', function () { dispatch(new Work('fails')); dispatch(new Work('fails')); run(2); command('Retry', ['id' => ['all']]); note(sizes()); });
scenario('queue:retry of nothing', function () { command('Retry', ['id' => ['12345678']]); });
scenario('queue:forget', function () { dispatch(new Work('fails')); run(); command('ForgetFailed', ['id' => failed_id()]); command('ForgetFailed', ['id' => '12345678']); });
scenario('queue:flush', function () { dispatch(new Work('fails')); run(); command('FlushFailed', []); });
