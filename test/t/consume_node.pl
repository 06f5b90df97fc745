# The library for Node: no job is lost, and no consumer acknowledges a job after losing the lease.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqDisturbed;
use JobqLibrary;
use JobqTest;
use PostgreSQL::Test::Utils;
use Test::More;

$ENV{NODE_PATH} = join ':', grep { $_ } $ENV{NODE_PATH}, '/usr/share/nodejs';
my $node = library_node('Node with pg', 'node', '-e', 'require("pg")');
my @command = ('node', "$FindBin::RealBin/../consumers/consumer.js");

is_shown('node/example.js');
# the pause after an error of the server does not apply to a lost connection that listens
$node->safe_psql('postgres', q{SELECT jobq.create_queue('cut', mode => 'consumer')});
command_like([ 'node', '-e', <<'END', "$FindBin::RealBin/../../libraries/node/jobq.js" ], qr/^paused 0 done 1$/m, 'a consumer whose listening connection is lost makes another one at once');
const { Client } = require('pg');
const { Consumer } = require(process.argv[1]);
const set = globalThis.setTimeout, moment = () => new Promise(done => set(done, 10));
let pauses = 0, done = 0;

(async () => {
	const admin = new Client();
	await admin.connect();
	const ears = pid => admin.query(`SELECT pid FROM pg_stat_activity WHERE application_name = 'ear' AND query ~ '^LISTEN' AND state = 'idle' AND pid <> $1`, [pid]).then(({ rows }) => rows);
	const consumer = new Consumer({}, ['cut'], () => { done++; }, { listen: { application_name: 'ear' }, wait: 60, log: () => {} });
	const ended = consumer.run();
	let ear;
	while (!([ear] = await ears(0))[0]) await moment();
	// the function of a promise, and not a function of the library
	globalThis.setTimeout = (call, ms) => {
		if (ms === 1000 && /native code/.test(call)) pauses++;
		return set(call, ms);
	};
	// the first attempt to connect fails
	const connect = consumer.ear.connect;
	consumer.ear.connect = async () => {
		consumer.ear.connect = connect;
		throw new Error('the server does not answer');
	};
	await admin.query('SELECT pg_terminate_backend($1)', [ear.pid]);
	while ((await ears(ear.pid)).length === 0) await moment();
	await admin.query(`SELECT jobq.enqueue('work', '{}', 'cut')`);
	while (done === 0) await moment();
	console.log(`paused ${pauses} done ${done}`);
	consumer.stop();
	await ended;
	await admin.end();
})();
END
# lines that are stored already are not sent again with the end of the job
$node->safe_psql('postgres', q{SELECT jobq.create_queue('twice', mode => 'consumer')});
$node->safe_psql('postgres', q{SELECT jobq.enqueue('work', '{}', 'twice')});
command_ok([ 'node', '-e', <<'END', "$FindBin::RealBin/../../libraries/node/jobq.js" ], 'a handler acknowledges its job while lines are reported');
const { Client } = require('pg');
const { Consumer } = require(process.argv[1]);
let stored, answer;
const isStored = new Promise(done => { stored = done; }), isAnswered = new Promise(done => { answer = done; });

const handle = async job => {
	job.log('once');
	await isStored;
	const client = new Client();
	await client.connect();
	const acknowledged = job.ack(client);
	answer();
	await acknowledged;
	await client.end();
	consumer.stop();
};
const consumer = new Consumer({}, ['twice'], handle);
const rows = consumer.teller.rows;

// the lines are stored, and the consumer does not know yet
consumer.teller.rows = async function (patience, text, values) {
	const result = await rows.call(this, patience, text, values);
	if (/jobq\.log/.test(text)) {
		stored();
		await isAnswered;
	}
	return result;
};
consumer.run();
END
is($node->safe_psql('postgres', q{SELECT state, jsonb_path_query_array(log, '$[*].message') FROM jobq.jobs WHERE queue = 'twice'}),
	'completed|["once"]', 'each line is stored once');
$node->safe_psql('postgres', q{SELECT jobq.create_queue('signaled', mode => 'consumer')});
$node->safe_psql('postgres', q{SELECT jobq.enqueue('work', '{}', 'signaled', max_attempts => 1)});
command_ok([ 'setsid', '-w', 'node', '-e', <<'END', "$FindBin::RealBin/../../libraries/node/jobq.js" ], 'a consumer and the command of its handler get SIGTERM together');
const { execFile } = require('child_process');
const { Consumer } = require(process.argv[1]);

const handle = () => new Promise((done, fail) => {
	execFile('sleep', ['600'], error => fail(error)).once('spawn', () => process.kill(-process.pid, 'SIGTERM'));
});
new Consumer({}, ['signaled'], handle, { lease: 3600 }).run();
END
is($node->safe_psql('postgres', q{SELECT state, attempt FROM jobq.jobs WHERE queue = 'signaled'}), 'ready|0', 'the job goes back, and no attempt is charged');
try_library($node, 'node', \@command, restart => 1);
try_many($node, 'node-many', \@command, 17);
try_ahead($node, 'node-ahead', \@command);
try_tells($node, 'node-tells', \@command);
try_kills($node, 'node-kills', \@command);
try_untold($node, 'node-untold', \@command);
try_refused($node, 'node-refused', \@command);
try_commits($node, 'node-commits', \@command);
try_silence($node, 'node-silence', \@command);
try_silent_connect($node, 'node-unanswered', \@command);
try_silent_start($node, 'node-silent', \@command);
try_behind_pooler($node, 'node-pooled', \@command, 3);
try_numbers($node, 'node-numbers', \@command);

$node->stop;
no_failed_assertion($node);
done_testing();
