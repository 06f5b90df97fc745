# The program jobq: commands are calls of SQL, output and exit status are stable, and values in
# jobs cannot harm the terminal.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run ();
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($node, $jobq) = client_node();

# Run a command.  Returns standard output, standard error and exit status.
sub run_jobq
{
	my (@words) = @_;
	my ($out, $err);

	IPC::Run::run([ $jobq, @words ], '<', File::Spec->devnull, '>', \$out, '2>', \$err);
	chomp($out, $err);
	return ($out, $err, $? >> 8);
}

sub is_output
{
	my ($words, $expected, $name, $status) = @_;
	my ($out, $err, $got) = run_jobq(@$words);

	is($out, $expected, $name);
	is($err, '', "$name: no message");
	is($got, $status || 0, "$name: exit status");
	return;
}

sub is_refused
{
	my ($words, $message, $status, $name) = @_;
	my ($out, $err, $got) = run_jobq(@$words);

	like($err, $message, $name);
	is($got, $status, "$name: exit status");
	return $out;
}

sub sql { return $node->safe_psql('postgres', $_[0]); }

# No extension, no server, and wrong words.
is_refused([qw(list)], qr/^jobq: error: relation "jobq.jobs" does not exist.*CREATE EXTENSION/s, 1, 'no extension');
is_refused([qw(list -d nowhere)], qr/^jobq: error: .*database "nowhere" does not exist/, 3, 'no database');
is_refused([qw(list -p 1)], qr/^jobq: error: /, 3, 'no server');
is(is_refused([qw(check mail:1)], qr/CREATE EXTENSION/, 3, 'check: no extension'), 'JOBQ UNKNOWN - relation "jobq.queues" does not exist', 'check: the line');
like(is_refused([qw(check mail:1 -d nowhere)], qr/^$/, 3, 'check: no database'), qr/^JOBQ UNKNOWN - .*database "nowhere" does not exist$/, 'check: the line');
is_refused([], qr/no command is given/, 2, 'no command');
is_refused([qw(lisst)], qr/there is no command "lisst"/, 2, 'no such command');
is_refused([qw(list --colour)], qr/invalid option.*--colour.*\n.*jobq list --help/, 2, 'no such option');
is_refused([qw(list --limit)], qr/without its value/, 2, 'an option without its value');
is_refused([ 'list', "--state=$_" ], qr/invalid value for --state: "\Q$_\E"\n.*hint: It is one of blocked, scheduled, .*cancelled or expired\./, 2, "no such state: '$_'")
  foreach 'foo', 'fail', 'ed', 'or', '', 'ready, running';
is_refused([qw(cancel)], qr/lacks an argument: ID/, 2, 'too few arguments');
is_refused([qw(show 1 2)], qr/too many arguments: "2" \(it is: ID\)/, 2, 'too many arguments');
is_refused([qw(list all)], qr/has no arguments, only options: "all"/, 2, 'an argument of a command that has none');
like((run_jobq('--help'))[0], qr/^  tail ID +follow a job/m, 'help lists the commands');
my $page = "$FindBin::RealBin/../../client/jobq.1";
IPC::Run::run([ "$FindBin::RealBin/../../client/page", $jobq, '-' ], '>', \my $written);
is($written, slurp_file($page), 'the manual page has all commands and options, as client/page writes it');
like((run_jobq(qw(enqueue --help)))[0], qr/^ +--max-attempts=int +the largest number of attempts/m, 'help of a command lists its options');
like((run_jobq('--version'))[0], qr/^jobq \d+\.\d+\.\d+$/, 'version');

# Completion: the typed words and the possible next words.
sub completed
{
	my (@words) = @_;
	my $out;

	local $ENV{PATH} = $node->config_data('--bindir') . ":$ENV{PATH}";
	IPC::Run::run(
		[   'bash', '-c', '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _jobq; printf "%s\n" "${COMPREPLY[@]}"',
			"$FindBin::RealBin/../../client/completion.bash", 'jobq', @words ],
		'>', \$out);
	my %words = map { $_ => 1 } split /\n/, $out;
	return [ sort keys %words ];
}

sub options_of
{
	my ($command) = @_;
	my %options = map { $_ => 1 } (run_jobq('help', $command))[0] =~ /(--[a-z0-9-]+)/g;

	return [ sort keys %options ];
}

my @commands = map { /^  ([a-z-]+)/ ? $1 : () } split /\n/, (run_jobq('--help'))[0] =~ s/\n\nConnection.*//sr =~ s/.*Commands:\n//sr;
cmp_ok(scalar @commands, '>', 30, 'there are commands');
is_deeply(completed(''), [ sort @commands, 'help' ], 'commands are completed');
is_deeply(completed($_, '--'), options_of($_), "options of $_ are completed") foreach @commands;
is_deeply(completed('-d', 'x', 'work', '--par'), ['--parallel'], 'an option');
is_deeply(completed('list', '--color', 'a'), [qw(always auto)], 'values of an option');

sql(q{CREATE EXTENSION jobq;
CREATE FUNCTION f(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF payload ? 'error' THEN RAISE EXCEPTION '%', payload ->> 'error'; END IF;
	PERFORM jobq.log('at it');
	RETURN payload;
END $$;
SELECT jobq.register('f', 'f(jsonb)', max_attempts => 1);
SELECT jobq.create_queue('outside', open => true, mode => 'consumer')});

is_output([qw(enqueue f), '{"a": 1}', '--priority', '3', '--options', '{"watch": true}'], '1', 'enqueue prints the id');
is((run_jobq(qw(wait 1)))[2], 0, 'wait until it is completed');
is(sql('SELECT priority, result FROM jobq.jobs WHERE id = 1'), '3|{"a": 1}', 'the option and the payload arrived');
is_refused([qw(enqueue f {)], qr/invalid input syntax for type json/, 1, 'the server refuses');
like((run_jobq(qw(show 1)))[0], qr/^state +completed\n(?:.*\n)*^result +\{"a": 1\}$/m, 'show');
like((run_jobq(qw(explain 1)))[0], qr/^completed +the job has ended at/m, 'explain');
like((run_jobq(qw(history 1)))[0], qr/ enqueued .*\n.* started .*\n.* info .* at it.*\n.* completed .*\{"a": 1\}/, 'history');
is_refused([qw(explain 99)], qr/job 99 does not exist/, 1, 'explain of what is not there');
is_refused([qw(show 99)], qr/job 99 does not exist, or is another role's/, 1, 'show what is not there');
is(sql(q{SELECT '}. (run_jobq(qw(--json show 1)))[0] . q{'::jsonb ->> 'state'}), 'completed', 'show as JSON');

is_output([qw(enqueue f), '{"error": "oh dear"}'], '2', 'one that fails');
my ($out, $err, $status) = run_jobq(qw(tail 2));
like($out, qr/dead  attempt 1  oh dear$/m, 'tail tells how it has failed');
is($status, 10, 'tail: exit status');
like((run_jobq(qw(tail 1)))[0], qr/^\d\d:\d\d:\d\d  info: at it\n.*completed  attempt 1\n\{"a": 1\}$/m, 'tail tells log and result');
is((run_jobq(qw(wait 1 2)))[2], 10, 'wait for several: the worst');
like((run_jobq(qw(dead --kind f)))[0], qr/^ 2  f +default +1 .* P0001 +oh dear$/m, 'dead');
is_output([ qw(edit 2), '--payload={"error": "oh dear"}', '--max-attempts=1' ], '', 'edit');
is(sql('SELECT payload, max_attempts FROM jobq.dead_letters WHERE id = 2'), '{"error": "oh dear"}|1', 'it has another payload');
is_refused([qw(edit 2)], qr/nothing is given/, 1, 'with nothing');
is_output([qw(retry 2)], '', 'retry');
is((run_jobq(qw(wait 2)))[2], 10, 'which fails again');
is_output([qw(retry-many --kind g)], '0', 'retry-many of another kind');
is_output([qw(retry-many --kind g --batch-id 1 --max-jobs 1)], '0', 'of a batch, and at most so many');

# Commands on all dead letters of a time range.
is_output([qw(retry-many --newer-than 0s)], '0', 'retry-many of what fails from now on');
sql(q{SELECT jobq.test_clock('3 h')});
is_output([qw(retry-many --older-than 2h --newer-than 2.5h)], '0', 'of an hour when none has');
is_output([qw(retry-many --older-than 2h --newer-than 4h --queue default)], '1', 'of an hour when one has');
is((run_jobq(qw(wait 2)))[2], 10, 'which fails again');
is_refused([$_], qr/"$_" has no condition\n.*hint: To mean all, give --older-than=0/, 2, "$_ without a condition") foreach qw(retry-many delete-many);
is_output([qw(retry-many --older-than 0)], '1', 'all');
is((run_jobq(qw(wait 2)))[2], 10, 'which fails again');
sql(q{SELECT jobq.test_clock('0')});
is_output([qw(delete-many --error), 'another%'], '0', 'delete-many: none has this error');
is_refused([qw(retry-many --state ready)], qr/not for jobs in the state "ready"\n.*hint: /, 1, 'a state that is not allowed');
is_output([qw(delete 2)], '', 'delete');
is_refused([qw(delete 2)], qr/2/, 1, 'which is not there any more');

is_output([qw(enqueue f --delay), '1 h', '--unique-key', 'k'], '3', 'one for later');
is_refused([qw(wait 3 -t 10ms)], qr/^$/, 1, 'wait until the time is over');
like((run_jobq(qw(list --state scheduled --unique-key k)))[0], qr/^ 3  scheduled  f /m, 'list');
is(sql(q{SELECT jsonb_array_length('} . (run_jobq(qw(list --json -n 2)))[0] . q{')}), '2', 'list as JSON');
is(sql(q{SELECT '} . (run_jobq(qw(list --json -n 1 --before 3)))[0] . q{'::jsonb -> 0 ->> 'id'}), '1', 'the next page');
is_output([qw(edit 3 --priority=-7)], '', 'another priority');
is_output([ qw(edit 3 --run-at), '2999-01-01 00:00Z' ], '', 'another time');
is(sql(q{SELECT priority, run_at AT TIME ZONE 'UTC' FROM jobq.jobs WHERE id = 3}), '-7|2999-01-01 00:00:00', 'it has both');
is_refused([qw(edit 3 --run-at soon)], qr/invalid input syntax .*"soon"/, 1, 'a time that is none');
ok(eval { IPC::Run::run([ $jobq, 'tail', 3 ], '|', [ 'head', '-n', 1 ], '>', \$out, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default)); 1 },
	'tail ends when nobody reads it any more');
like($out, qr/^\d\d:\d\d:\d\d  scheduled$/, 'of a job that has not ended');
# A write error on standard output is an error.
foreach my $words ([qw(--help)], [qw(--version)], [qw(help list)], [qw(list)], [qw(list --json)], [qw(show 3)], [qw(tail 1)], [qw(doctor)], [qw(check default:1)], [qw(wait 1)])
{
	IPC::Run::run([ $jobq, @$words ], '<', File::Spec->devnull, '>', '/dev/full', '2>', \$err);
	is($? >> 8, 1, "@$words to a full disk");
	like($err, qr/could not write all output/, "@$words: the message");
}
is_output([qw(cancel 3 --json)], '[{"id":3,"cancelled":true}]', 'cancel');
is_output([ 'signal', '3', 'go', '{"by": "Ann"}' ], 'f', 'signal to a cancelled job');

# A job is named by its id, its uuid or its unique key.
my $told = sql(q{SELECT jobq.enqueue('f', unique_key => '3', delay => '1 h', options => '{"uuid": "01980000-0000-7000-8000-000000000001"}')});
sql(q{SELECT jobq.enqueue('f', unique_key => '3', options => '{"delay": "1 h", "uniqueness": {"scope": "database"}}')});
is_output([ 'signal', $told, 'id' ], 't', 'signal by id');
is_output([qw(signal 01980000-0000-7000-8000-000000000001 uuid 1)], 't', 'by uuid');
is_output([ qw(signal 3 key --kind=f), '{"n": 1}' ], 't', 'by unique key');
is_output([qw(signal 3 database -- [])], 'f', 'without an option, a number is an id');
is_output([qw(signal 3 database [] --scope=database)], 't', 'by a key of the database');
is_output([qw(signal 3 key --kind=nothing)], 'f', 'by a key that no job holds');
is_refused([qw(signal 3 key --queue=default)], qr/a queue needs scope "queue"/, 1, 'a queue without the scope');
is_refused([qw(signal 3)], qr/lacks an argument: JOB NAME \[PAYLOAD\]/, 2, 'a signal without a name');
is(sql(q{SELECT string_agg(s.name || s.payload, ' ' ORDER BY s.id) FROM jobq_internal.signal s}), 'id{} uuid1 key{"n": 1} database[]', 'each was sent once');
sql(q{SELECT jobq.cancel_many(unique_key => '3')});

# A rerun from a step on.
sql(q{CREATE TABLE ran (what text); CREATE PROCEDURE steps(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	name text;
BEGIN
	FOREACH name IN ARRAY '{one,two}'::text[] LOOP
		IF jobq.step(name) THEN
			INSERT INTO ran VALUES (name);
			CALL jobq.step_done();
		END IF;
	END LOOP;
END $$});
sql(q{SELECT jobq.register('steps', 'steps(jsonb)')});
my ($walked) = run_jobq(qw(enqueue steps));
is((run_jobq('wait', $walked))[2], 0, 'a procedure with two steps');
my ($again) = (run_jobq('rerun', $walked, '--from-step=two', '--json'))[0] =~ /"new_id":(\d+)/;
is((run_jobq('wait', $again))[2], 0, 'rerun from the second step on');
is(sql(q{SELECT string_agg(what, ' ' ORDER BY ctid) FROM ran}), 'one two two', 'the first step was skipped');
is_refused([ 'rerun', $walked, '--from-step=three' ], qr/has no step "three"/, 1, 'a step that does not exist');
sql(q{SELECT jobq.unregister('steps'); DROP PROCEDURE steps; DROP TABLE ran});
is((run_jobq(qw(tail 3)))[2], 11, 'tail of a cancelled job: exit status');

# A job without a row after the end: waiting sessions are still notified of the end state.
sql(q{SELECT jobq.create_queue('traceless', mode => 'consumer', keep => 'nothing')});
my $tries = 0;
foreach my $case ([ 'completed', 0 ], [ 'cancelled', 11 ])
{
	sql(q{SELECT jobq.enqueue('x', queue => 'traceless')});
	my ($id, $token) = split /\|/, sql(q{SELECT id, token FROM jobq.reserve('{traceless}', lease => '1 h', wait => '5 min')});
	my $ends = $case->[0] eq 'completed' ? "ack($id, $token)" : "cancel($id)";
	my $told = '';
	my $tail = IPC::Run::start([ $jobq, 'tail', $id ], '<', File::Spec->devnull, '>', \$told, '2>', \$err, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));

	$tail->pump until $told =~ /running/;
	# "jobq tail" waits one second at a time: end the job early in a wait, not between two waits
	sql(qq{DO \$\$
BEGIN
	FOR i IN 1 .. 9000 LOOP
		PERFORM pg_sleep(0.02), pg_stat_clear_snapshot();
		EXIT WHEN EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'jobq' AND query LIKE '%jobq.wait(%'
			AND wait_event_type = 'Extension' AND clock_timestamp() < query_start + interval '0.5 s');
	END LOOP;
	PERFORM jobq.$ends;
END \$\$});
	$tail->finish;
	# "jobq tail" may have been between two waits; try again
	redo if $err =~ /it is not known how it has ended/ && $tries++ < 5;
	is($tail->full_result(0) >> 8, $case->[1], "tail of a job without a row that is $case->[0]: exit status");
	like($told, qr/\n\d\d:\d\d:\d\d  $case->[0]\n\z/, 'its end is told');
	is($err, '', 'and no error');
}
sql(q{SELECT jobq.drop_queue('traceless')});
is_output([qw(create-queue slow --max-running 2 --rate), '5 per second'], '', 'create-queue');
is_output([qw(alter-queue slow --max-running 3)], '', 'alter-queue');
is(sql(q{SELECT max_running, rate FROM jobq.queues WHERE name = 'slow'}), '3|5 per second', 'settings of a queue');
is_refused([qw(alter-queue slow --keep everything)], qr/invalid value for keep: "everything"\n.*hint: It is one of/, 1, 'a value that is not allowed');
is_deeply(completed('pause', 'sl'), ['slow'], 'queues are completed');
{
	# names of queues may contain any character, and the shell must not run them
	local $ENV{PLANTED} = PostgreSQL::Test::Utils::tempdir() . '/planted';
	my @names = ('sl ow', 'sl$(touch${IFS}$PLANTED)', 'sl`touch "$PLANTED"`\\');

	sql(join ';', map { "SELECT jobq.create_queue('$_')" } @names);
	is_deeply(completed('pause', 'sl'), [ sort 'slow', map { s/([^a-zA-Z])/\\$1/gr } @names ], 'whatever their names are');
	is_deeply(completed('list', '-q', 'sl\\ '), ['sl\ ow'], 'one with a blank');
	ok(!-e $ENV{PLANTED}, 'what stands in a name is not run');
	sql(join ';', map { "SELECT jobq.drop_queue('$_')" } @names);
}
is_output([qw(pause slow default)], '', 'pause');
is(sql('SELECT count(*) FROM jobq.queues WHERE paused'), '2', 'both are paused');
is_output([qw(resume slow default)], '', 'resume');
is_output([qw(wait-queue default)], '', 'wait-queue');
sql(q{SELECT jobq.enqueue('x', queue => 'outside') FROM generate_series(1, 3)});
is_refused([qw(wait-queue outside -t 10ms)], qr/queue "outside" has jobs/, 1, 'wait-queue in vain');
is_output([ 'check', 'outside:3,slow:0' ], 'JOBQ OK - outside 3 of 3, slow 0 of 0', 'check');
is_output([ 'check', 'outside:2,slow:0' ], 'JOBQ CRITICAL - outside 3 of 2, slow 0 of 0', 'check: too many', 2);
is_output([ 'check', 'none:2' ], 'JOBQ UNKNOWN - none does not exist', 'check: no such queue', 3);
is_refused([ 'check', $_ ], qr/invalid list of queues: "$_"/, 3, "check: '$_' is no list") foreach '', ',', 'mail', 'mail:', 'mail:x', ':3', 'mail:99999999999999999999';
is_output([qw(cancel-many --queue outside --state waiting)], '3', 'cancel-many');
is_output([qw(drop-queue slow)], '', 'drop-queue');

# A consumer with a name, which lists the workers, and a consumer with a time limit.
sql(q{SELECT jobq.enqueue('x', queue => 'outside', unique_key => 'named')});
is((run_jobq(qw(work outside --once --quiet --name painter --exec), "'$jobq' --json workers"))[2], 0, 'work under a name');
is(sql(q{SELECT string_agg(w ->> 'name', ',') FROM jobq.jobs, jsonb_array_elements(result) AS w
		 WHERE queue = 'outside' AND state = 'completed' AND w ->> 'type' = 'consumer'}), 'painter', 'which the view workers has');
is((run_jobq(qw(work outside --max-time 100ms --exec true)))[2], 0, 'work for some time');

# Findings as text, as JSON and as exit status.
like((run_jobq('doctor'))[0], qr/^(All is well|(warning|notice|info|critical) +\S.*\n +\S)/, 'doctor');
my ($ill, $ill_in_json);
for (1 .. 5)
{
	# the findings may change between the two calls
	($ill_in_json, $ill) = ((run_jobq(qw(doctor --json)))[2], (run_jobq('doctor'))[2]);
	last if $ill_in_json == $ill;
}
is($ill_in_json, $ill, 'doctor as JSON: exit status');
is(sql(q{SELECT jsonb_typeof($x$} . (run_jobq(qw(doctor --json)))[0] . q{$x$)}), 'array', 'doctor as JSON');

# Workers are replaced, and old jobs deleted.
my $before = sql(q{SELECT min(pid) FROM jobq.workers WHERE type = 'worker'}) || 0;
is_output([qw(restart-workers)], '', 'restart-workers');
wait_for($node, 'the worker is another', "SELECT NOT EXISTS (SELECT FROM jobq.workers WHERE pid = $before)");
is_output([qw(prune --older-than 1d)], '0', 'prune: no job is so old');
is_output([qw(prune --older-than 0 --dry-run)], sql(q{SELECT count(*) FROM jobq.jobs WHERE finished_at IS NOT NULL AND state <> 'dead'}), 'prune: so many would be deleted');
is_refused([qw(prune)], qr/"prune" has no age/, 2, 'prune without an age');
is_refused([qw(batches --state none)], qr/invalid value for --state: "none".*pending, running/s, 2, 'batches in a state that is none');
is_refused([qw(prune --older-than soon)], qr/invalid input syntax .*"soon"/, 1, 'prune: an age that is none');

# A schedule, run now.
sql(q{SELECT jobq.schedule('nightly', '@yearly', 'f', '{"b": 2}')});
sql(q{SELECT jobq.schedule('paused', 'every 1 hour', 'f'), jobq.pause(schedule => 'paused')});
like((run_jobq('schedules'))[0], qr/^nightly .* (\d+)-01-01 00:00:00\S* +(??{$1 + 1})-01-01 \S+, (??{$1 + 2})-01-01 /m, 'schedules, with their next ticks');
like((run_jobq('schedules'))[0], qr/^paused +paused +every 1 hour /m, 'one that has none');
my $run = (run_jobq(qw(run-schedule nightly)))[0];
is((run_jobq('wait', $run))[2], 0, 'run-schedule prints the id of a job that runs');
is(sql("SELECT result FROM jobq.jobs WHERE id = $run"), '{"b": 2}', 'which is the schedule\'s');
is_refused([qw(run-schedule daily)], qr/schedule "daily" does not exist/, 1, 'run-schedule: no such schedule');

# A workflow in which a step needs two others, and a name needs quotes.
my $batch = sql(q{SELECT jobq.create_workflow('{"name": "w", "steps": [
	{"name": "a", "kind": "f"}, {"name": "b, \"c\"", "kind": "f", "needs": ["a"]},
	{"name": "d", "kind": "f", "needs": ["a"]}, {"name": "e", "kind": "f", "needs": ["b, \"c\"", "d"]}]}')});
wait_for($node, 'the workflow is done', "SELECT state = 'completed' FROM jobq.batches WHERE id = $batch");

# A column of a list has the name of the column in the view, or is one of those that only the program has.
my %view_of = (
	list => [ 'jobs', '' ], dead => [ 'dead_letters', '' ], failures => [ 'failures', 'new' ], queues => [ 'queues', 'waiting_for' ], kinds => [ 'kinds', '' ],
	workers => [ 'workers', 'name running_for' ], schedules => [ 'schedules', 'next_ticks' ], batches => [ 'batches', '' ], "workflow $batch" => [ 'steps', 'attempt error' ]);
sql(q{SELECT jobq.enqueue('f', '{"error": "to be listed"}')});
wait_for($node, 'there is a dead letter', q{SELECT EXISTS (SELECT FROM jobq.dead_letters)});
foreach my $command (sort keys %view_of)
{
	my ($view, $more) = @{ $view_of{$command} };
	my $rows = (run_jobq('--json', split / /, $command))[0] =~ s/'/''/gr;
	is( sql(qq{SELECT count(*) > 3, string_agg(k, ' ') FILTER (WHERE k <> ALL ('{@{[ $more =~ tr/ /,/r ]}}')
			AND NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'jobq.$view'::regclass AND attname = k))
			FROM jsonb_object_keys('$rows'::jsonb -> 0) k}),
		't|', "$command: columns of the view $view");
}
my $drawn = (run_jobq('workflow', $batch))[0];
$drawn =~ s/job \d+/job N/g;
is($drawn, qq{a  completed  job N
├─ b, "c"  completed  job N
│  └─ e  completed  job N
└─ d  completed  job N
   └─ e  (above)}, 'a workflow is drawn');
is((run_jobq('workflow', 99))[2], 1, 'a workflow that is not there');
like((run_jobq('batches'))[0], qr/^ *$batch  w +completed +4 /m, 'batches');
# A step with a job for each array element is one line.
my $mapped = sql(q{SELECT jobq.create_workflow('{"steps": [{"name": "list", "kind": "f", "payload": [1, 2, 3]},
	{"name": "each", "kind": "f", "needs": ["list"], "map": {"$result": "list"}}, {"name": "all", "kind": "f", "needs": ["each"]}]}')});
wait_for($node, 'the workflow with elements is done', "SELECT state = 'completed' FROM jobq.batches WHERE id = $mapped");
($drawn = (run_jobq('workflow', $mapped))[0]) =~ s/job \d+/job N/g;
is($drawn, qq{list  completed  job N
└─ each  completed  job N  3 of 3 elements
   └─ all  completed  job N}, 'a step with elements is drawn');

# Of 300 dead letters of 6 causes, the new cause of the last hour is found, and exactly its jobs run again.
sql(q{SELECT jobq.create_queue('trouble', mode => 'consumer', open => true);
CREATE PROCEDURE fail_many(ahead interval, n int, causes text[]) LANGUAGE plpgsql AS $$
DECLARE
	job record;
BEGIN
	PERFORM jobq.test_clock(ahead);
	PERFORM jobq.enqueue('call', queue => 'trouble') FROM generate_series(1, n);
	COMMIT;
	WHILE n > 0 LOOP
		FOR job IN SELECT * FROM jobq.reserve('{trouble}', max_jobs => 300, wait => '1 min') LOOP
			PERFORM jobq.reject(job.id, job.token, format('%s: no answer for order %s', causes[1 + job.id % cardinality(causes)], job.id));
			n := n - 1;
		END LOOP;
		COMMIT;
	END LOOP;
END $$});
sql(q{CALL fail_many('0', 270, '{card declined,address unknown,limit reached,name taken,page missing}')});
sql(q{CALL fail_many('3 h', 20, '{host unreachable}')});
sql(q{CALL fail_many('3 h', 10, '{card declined}')});
($out) = run_jobq(qw(failures --queue trouble --kind call));
is(scalar(() = $out =~ /no answer for order/g), 6, 'six causes');
like($out, qr/\A[^\n]*first_seen[^\n]*\n(?:-.*\n)?[^\n]*JQ005 .* 20 +20 +20 .*host unreachable: no answer for order \d+$/m, 'the new cause comes first');
like($out, qr/ 64 +10 +64 .*card declined/, 'an old one that goes on');
my $new = sql(q{SELECT string_agg(f ->> 'fingerprint', ' ') FROM jsonb_array_elements($x$}
	. (run_jobq('failures', '--newer-than', '1 hour', '-q', 'trouble', '--json'))[0] . q{$x$) f});
like($new, qr/^\d+$/, 'and is the only one first seen in the last hour');
is(scalar(() = (run_jobq('dead', '--fingerprint', $new, '-n', 100))[0] =~ /host unreachable/g), 20, 'its dead letters');
is_output([ 'retry-many', '--fingerprint', $new, '--dry-run' ], '20', 'so many jobs would run again');
is(sql(q{SELECT count(*) FROM jobq.dead_letters WHERE queue = 'trouble'}), '300', 'none does yet');
is_output([ 'retry-many', '--fingerprint', $new ], '20', 'its jobs run again');
is(sql(q{SELECT string_agg(format('%s %s %s', j ->> 'action', j ->> 'jobs', j -> 'arguments' ->> 'fingerprint'), ',') FROM jsonb_array_elements($x$}
	. (run_jobq(qw(audit --action retry_many --limit 1 --json)))[0] . q{$x$) j}), "retry_many 20 $new", 'the call is in the audit log');
is(scalar(() = (run_jobq('list', '--fingerprint', $new, '-n', 100))[0] =~ /host unreachable/g), 20, 'jobs of a cause are listed');
is(scalar(() = (run_jobq('list', '--error', 'card declined%', '-q', 'trouble', '-n', 100, '--older-than', '2 h'))[0] =~ /card declined/g), scalar(() = (run_jobq('list', '--error', 'card declined%', '-q', 'trouble', '-n', 100, '--older-than', '2 h'))[0] =~ /^ *\d+ /mg), 'jobs with an error');
sql(q{SELECT jobq.enqueue('parcel', '{"n": {"m": 7}}', queue => 'trouble', tags => '{fragile}')});
is(join(' ', map { scalar(() = (run_jobq('list', '-q', 'trouble', @$_))[0] =~ / parcel /g) } [ '--tag', 'fragile' ], [ '--tag', 'other' ], [ '--payload', '{"n": {"m": 7}}' ], [ '--newer-than', '1 h', '--kind', 'parcel' ], [ '--tenant', 'acme' ]),
	'1 0 1 1 0', 'jobs by tag, payload, age and tenant');
is_output([ 'cancel-many', '--kind', 'parcel', '--tags', $_, '--dry-run' ], $_ =~ /other/ ? '0' : '1', "cancel-many: jobs with the tags $_") foreach 'fragile', '{fragile}', '{fragile,other}';
is(scalar(() = (run_jobq('list', '-q', 'trouble', '--tags', $_))[0] =~ / parcel /g), $_ =~ /other/ ? 0 : 1, "list: jobs with the tags $_") foreach 'fragile', '{fragile}', '{fragile,other}';
is_output([ 'edit-many', '{"priority": -5}', '--kind', 'parcel' ], '1', 'edit-many');
is(sql(q{SELECT priority FROM jobq.live_jobs WHERE kind = 'parcel'}), '-5', 'has changed the job');
is_refused([ 'edit-many', '{"priority": -5}', '--dry-run' ], qr/"edit-many" has no condition/, 2, 'edit-many without a condition');
sql(q{SELECT jobq.cancel_many(kind => 'parcel')});
# A list takes the conditions of the calls, and shows as many jobs as the calls select.
foreach my $conditions ([ '--error', 'card%' ], [ '--sqlstate', 'JQ005', '--kind', 'call' ], [ '--sqlstate', '22012' ], [ '--newer-than', '1 h', '--error', 'card%' ], [ '--older-than', '1 h', '--error', 'card%' ], [ '--tags', 'fragile' ], [ '--payload', '{"a": 1}' ])
{
	my ($n) = run_jobq('delete-many', '--queue', 'trouble', @$conditions, '--dry-run');

	is(scalar(() = (run_jobq('dead', '-q', 'trouble', '-n', 1000, @$conditions))[0] =~ /^ *\d+ /mg), $n, "dead letters with @$conditions: $n");
}
is(sql(q{SELECT count(*), bool_and(error LIKE 'host unreachable%') FROM jobq.live_jobs WHERE queue = 'trouble'}), '20|t', 'and no others');
is(sql(q{SELECT count(*) FROM jobq.dead_letters WHERE queue = 'trouble'}), '280', 'the others are left');
# On a terminal, the number comes first, and then a question.
SKIP:
{
	skip 'no terminal', 16 unless eval { require IO::Pty; require JobqScreen; 1 };
	foreach ([ 'delete-many', 'n', 1, '280' ], [ 'delete-many', '', 1, '280' ], [ 'delete-many', 'y', 0, '279' ], [ 'cancel-many', 'no question without jobs', 0, '279' ])
	{
		my ($command, $answer, $status, $left) = @$_;
		my $screen = JobqScreen->new(24, 120, $jobq, $command, '--error', 'page missing%', '--max-jobs', '1');

		ok($screen->shows(qr/^jobq $command: 1 job\. Continue\? \[y\/N\]/m), "$command: the number, and a question") and $screen->type("$answer\n") if length $answer < 2;
		is($screen->finish >> 8, $status, "answer '$answer'");
		is(sql(q{SELECT count(*) FROM jobq.dead_letters WHERE queue = 'trouble'}), $left, 'only yes changes anything');
	}
	# The causes, with the command that retries their dead letters.  The jobs retried above fail once more.
	sql(q{CALL fail_many('3 h', 2, '{it''s new}')});
	my $causes = JobqScreen->new(60, 100, $jobq, 'failures', '--queue', 'trouble', '--newer-than', '1 h');
	is($causes->finish, 0, 'failures on a terminal');
	like($causes->text, qr/^new: JQ005 it's new: no answer for order \d+ *\n    22 dead, 22 failed, 22 in the last hour, last job \d+ *\n    first .*\n    queue trouble, kinds \{call\} *\n    jobq retry-many --queue=trouble --fingerprint=\d+ *$/m, 'say how to retry the dead letters of a cause');
	my ($retry) = $causes->text =~ /retry-many (--queue=.*\d)/;
	is_output([ 'retry-many', split(/ /, $retry // '') ], '22', 'which it does');
	my $screen = JobqScreen->new(24, 120, $jobq, 'delete-many', '--error', 'page missing%', '--max-jobs', '1', '--yes');
	is($screen->finish, 0, 'with --yes');
	unlike($screen->text, qr/Continue/, 'no question');
}
is_refused([qw(retry-many --fingerprint x)], qr/invalid input syntax for type bigint: "x"/, 1, 'a fingerprint that is none');
sql(q{SELECT jobq.cancel_many(queue => 'trouble', state => 'waiting'), jobq.delete_many(queue => 'trouble'), jobq.test_clock('0')});

# Each command with a list prints a table or JSON.
foreach my $command (qw(list audit failures dead queues kinds workers schedules batches))
{
	is((run_jobq($command))[2], 0, "$command: exit status");
	is(sql(q{SELECT jsonb_typeof($x$} . (run_jobq($command, '--json'))[0] . q{$x$)}), 'array', "$command as JSON");
}

# Control characters in a job do not reach the terminal.
sql(q{SELECT jobq.enqueue('f', jsonb_build_object('error', E'red \x1b[31m two\nlines \u202e \u009b1m tab\t'), unique_key => E'\x1b]0;title\x07\u009b2J\njobq: all is well')});
sql(q{SELECT jobq.wait_queue('default', '5 min')});
foreach my $words ([qw(list)], [qw(dead)], [qw(failures)], [ 'show', sql('SELECT max(id) FROM jobq.dead_letters') ])
{
	my $shown = (run_jobq(@$words, '--color=always'))[0];

	$shown =~ s/\e\[\d*m//g;	# our own colours: there are only such
	unlike($shown, qr/[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80\xae/, "@$words: no control characters");
	like($shown, qr/red \\x1B\[31m two\\nlines/, "@$words: but they can be seen");
}
unlike((run_jobq(qw(list --color=never)))[0], qr/\e/, 'no colours');
my $json = (run_jobq(qw(list --json)))[0];
unlike($json, qr/[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80\xae/, 'JSON: no control characters');
is(sql(q{SELECT count(*) FROM jsonb_array_elements($x$} . $json . q{$x$) AS j WHERE j ->> 'error' ~ E'\u202e \u009b1m'}), '1', 'JSON: but they are there');
# Nor do control characters in messages of the server: an error and a warning.
my $copy = sql(q{SELECT jobq.enqueue('f', delay => '1 h', unique_key => unique_key) FROM jobq.jobs WHERE id = (SELECT max(id) FROM jobq.dead_letters)});
($out, $err, $status) = run_jobq('retry', sql('SELECT max(id) FROM jobq.dead_letters'));
is($err, "jobq: error: job $copy of kind \"f\" has the unique key \"\\x1B]0;title\\x07\\xC2\\x9B2J\\njobq: all is well\"", 'the key in an error is on its line, and can be seen');
is($status, 1, 'the error: exit status');
sql("SELECT jobq.cancel($copy)");
$node->append_conf('postgresql.conf', "jobq.workers = 'default=1'");
$node->reload;
wait_for($node, 'other queues have no workers', q{SELECT current_setting('jobq.workers') = 'default=1'});
my $stuck = sql(q{SELECT jobq.enqueue('f', queue => E'un\x1b[31mserved')});
($out, $err, $status) = run_jobq('wait', $stuck, '-t', '10ms');
like($err, qr/\Ajobq: warning: job $stuck has not begun\njobq: hint: [^\n]*queue "un\\x1B\[31mserved"[^\n]*\z/, 'the queue in a warning, too');
is($status, 1, 'the warning: exit status');
sql("SELECT jobq.cancel($stuck)");

# Privileges.
sql(q{CREATE ROLE anna LOGIN; CREATE ROLE stranger LOGIN; SELECT jobq.grant_privilege('anna')});
is((run_jobq(qw(list --json -U anna)))[0], '[]', 'a role sees its own jobs');
is((run_jobq(qw(list --json -U stranger)))[0], '[]', 'a role without privileges sees nothing');
like((run_jobq(qw(rerun 1)))[0], qr/^ *1 +\d+$/m, 'rerun');
is_refused([qw(wait-queue default -U stranger)], qr/permission denied/, 1, 'a role without privileges waits for no queue');
is_refused([qw(pause default -U anna)], qr/permission denied/, 1, 'a role that may not manage');

# JSON from a file, or from the standard input.  Without any, no job is enqueued.
sub with_input
{
	my ($input, @words) = @_;
	my ($out, $err);

	IPC::Run::run([ $jobq, @words ], '<', \$input, '>', \$out, '2>', \$err);
	chomp($out, $err);
	return ($out, $err, $? >> 8);
}

my $given = PostgreSQL::Test::Utils::tempdir() . '/payload';
append_to_file($given, qq({"n": 12345678901234567890, "long": "@{[ 'x' x 300_000 ]}"}\n));
sql(q{SELECT jobq.create_queue('given', mode => 'consumer')});
my $shown = q{format('%s %s', payload ->> 'n', length(payload ->> 'long'))};
my ($written_id) = run_jobq('enqueue', 'parcel', "\@$given", qw(--queue given));
is(sql("SELECT $shown FROM jobq.jobs WHERE id = $written_id"), '12345678901234567890 300000', 'a payload of a file');
my ($piped) = with_input(slurp_file($given), qw(enqueue parcel - --queue given --headers), '{"n": 1}');
is(sql("SELECT $shown || headers FROM jobq.jobs WHERE id = $piped"), '12345678901234567890 300000{"n": 1}', 'a payload of the standard input');
is((with_input('{"n": 7}', 'edit', $piped, '--payload', '-'))[2], 0, 'edit by the standard input');
is_output([ 'edit', $written_id, '--payload', "\@$given", '--headers={"a": 1}' ], '', 'edit by a file');
is(sql("SELECT string_agg(left(payload::text, 10), ' ' ORDER BY id) FROM jobq.jobs WHERE id IN ($written_id, $piped)"), '{"n": 1234 {"n": 7}', 'both are edited');
foreach my $case ([ '', qr/no JSON in "standard input", which is empty/ ], [ " \n\t", qr/no JSON in "standard input"/ ], [ "{\0}", qr/null byte/ ], [ '{"n": ', qr/invalid input syntax for type json/ ])
{
	my (undef, $err, $status) = with_input($case->[0], qw(enqueue parcel - --queue given));

	like($err, $case->[1], 'input without JSON is refused');
	is($status, 1, 'and the exit status says so');
}
is_refused([qw(enqueue parcel @/nowhere --queue given)], qr/could not open "\/nowhere": No such file/, 1, 'no such file');
is(sql(q{SELECT count(*) FROM jobq.jobs WHERE queue = 'given'}), '2', 'nothing else was enqueued');
like((run_jobq(qw(edit --help)))[0], qr/JSON can be given as \@FILE, or as - for the standard input/, 'help');

# Queues in trouble come first.
sql(q{SELECT jobq.create_queue('zz paused'), jobq.create_queue('zz waits', mode => 'consumer'); SELECT jobq.pause('zz paused')});
sql(q{SELECT jobq.enqueue('parcel', queue => 'zz waits', run_at => now() - interval '1 hour')});
like((run_jobq('queues'))[0], qr{\nzz paused .*\nzz waits .*\ndefault }, 'paused queues, then those whose jobs wait, then the others');
sql(q{SELECT jobq.cancel_many(queue => 'zz waits'); SELECT jobq.cancel_many(queue => 'given'); SELECT jobq.drop_queue('zz paused'), jobq.drop_queue('zz waits'), jobq.drop_queue('given')});

# Ways to connect: services, a password file, several hosts.
my $dir = PostgreSQL::Test::Utils::tempdir();
my $user = sql('SELECT current_user');
my ($host, $port) = @ENV{qw(PGHOST PGPORT)};
append_to_file("$dir/service", "[jobs]\nhost=$host\nport=$port\ndbname=postgres\nuser=$user\n[locked]\nhost=$host\nport=$port\nuser=berta\n");
append_to_file("$dir/pass", "*:$port:postgres:berta:secret\n");
chmod 0600, "$dir/pass";
sql(q{CREATE ROLE berta LOGIN PASSWORD 'secret'; SELECT jobq.grant_privilege('berta')});
my $hba = slurp_file($node->data_dir . '/pg_hba.conf');
unlink $node->data_dir . '/pg_hba.conf';
$node->append_conf('pg_hba.conf', "local all berta scram-sha-256\n$hba");
$node->reload;
{
	local $ENV{PGSERVICEFILE} = "$dir/service";
	delete local @ENV{qw(PGHOST PGPORT PGDATABASE)};
	is((run_jobq(qw(queues -d service=jobs)))[2], 0, 'a service');
	local $ENV{PGSERVICE} = 'locked';
	is_refused([qw(queues -w -d postgres)], qr/no password supplied/, 3, 'no password');
	local $ENV{PGPASSFILE} = "$dir/pass";
	is((run_jobq(qw(queues -d postgres)))[2], 0, 'a password from a file');
}
my $hosts = "host=/nowhere,$host port=1,$port";
is((run_jobq('queues', '-d', "$hosts dbname=postgres target_session_attrs=read-write"))[2], 0, 'the second of two hosts');
is_refused([ 'queues', '-d', "$hosts dbname=postgres target_session_attrs=standby" ], qr/not in hot standby mode/, 3, 'neither is what is wanted');

$node->stop;
no_failed_assertion($node);
done_testing();
