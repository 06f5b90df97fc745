# The driver for Laravel works with the packages of Laravel in Debian.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqLibrary;
use JobqProgram;
use JobqTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = library_node('illuminate/queue',
	'php', '-r', 'foreach (["Queue", "Events", "Bus", "Database", "Console", "Support"] as $part) is_readable("/usr/share/php/Illuminate/$part/autoload.php") || exit(1);
		exit(extension_loaded("pdo_pgsql") && function_exists("pcntl_alarm") ? 0 : 1);');
my @php = (with_decimal_comma(), 'php', "$FindBin::RealBin/../consumers/laravel.php");
my $self = JobqLibrary->new($node, 'laravel', [ @php, 'work', 'urgent|laravel' ]);
my $folder = $ENV{FOLDER} = $self->{folder};

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub start_work
{
	local $self->{command} = [ @php, 'work', @_ ];

	return $self->start;
}

sub artisan
{
	my ($out, $err) = run_command([ @php, @_ ]);

	is($err, '', "@_ has no errors");
	return $out;
}

sub push_job { return artisan('push', @_); }

sub state_of { return sql("SELECT state, attempt, coalesce(error, '') FROM jobq.jobs WHERE id = $_[0]"); }

# The attempt numbers, as reported by Laravel at the start of jobs of this type.
sub attempts { return join ' ', slurp_file("$folder/attempt of $_[0]") =~ /^(\d+)/mg; }

sub ends { return wait_for($node, $_[1], "SELECT finished_at IS NOT NULL FROM jobq.jobs WHERE id = $_[0]"); }

sql(q{SELECT jobq.create_queue('urgent', mode => 'consumer')});

my %id = map { $_ => push_job($_) } 'run', 'fail', 'give up', 'once more', 'plain';
my $later = push_job('run', 100000);
is(sql("SELECT string_agg(DISTINCT kind, ' ' ORDER BY kind) FROM jobq.jobs"), 'Tests\\Plain Tests\\Work', 'a kind is the name of a class');
is_deeply([ run_command([ @php, 'push', 'odd key' ]) ],
	[ '', 'The decoded property name is invalid' ], 'what cannot be kept is not pushed, and not as nothing');
is(artisan('show', 'size'), 6, 'the size of the queue');

is(sql("SELECT string_agg(kind || ' ' || priority, ', ' ORDER BY id DESC) FROM jobq.jobs WHERE id >= $id{'once more'}"), 'Tests\\Work 0, Tests\\Plain -7, Tests\\Work 0',
	'a class has a priority of its own');

my $run = $self->start;
ends($id{$_}, "$_: it ends") foreach sort keys %id;
is(state_of($id{run}), 'completed|1|', 'a job is done');
is(state_of($id{fail}), 'dead|3|Exception: no image' . "\x{ef}\x{bf}\x{bd}", 'a job fails as often as Laravel says; the exception is kept');
is(state_of($id{'give up'}), 'dead|1|Exception: this is no image', 'a job that says so is a dead letter');
is(state_of($id{'once more'}), 'completed|1|', 'a job that is released comes again');
is(state_of($id{plain}), 'completed|1|', 'a job that deletes itself is done');
like(slurp_file("$folder/data"), qr/\{"a":\["\\u0000b",1\.5,\[\]\]\} /, 'data comes as they were pushed');
like(slurp_file("$folder/looping"), qr/^urgent\|laravel /, 'listeners of Queue::looping are called');
like(slurp_file("$folder/failed"), qr/^no image.*this is no image|this is no image.*no image/s, 'failed() is called');
is(state_of($later), 'scheduled|0|', 'a job that is delayed waits');

# A lease is lost.
my $id = push_job('hold');
$self->begun($id, 1, 'a long job begins');
my $second = $self->start;
my $until = sql("SELECT lease_until FROM jobq_internal.lease_slots() WHERE job_id = $id");
append_to_file("$folder/extend", 'extend');
wait_for($node, 'a job extends its lease',
	"SELECT lease_until > '$until' FROM jobq_internal.lease_slots() WHERE job_id = $id");
unlink "$folder/extend";
sql(q{SELECT jobq.test_clock('30 min')});
$self->begun($id, 2, 'when its lease is over, another worker has it');
append_to_file("$folder/extend", 'extend');
wait_for_file("$folder/lost", 'the first one is told');
says($run, qr/is not leased with this token/, 'so is the log');
is(sql("SELECT state, attempt FROM jobq.status($id)"), 'running|2', 'it acknowledges nothing');
unlink "$folder/extend";

# A worker is killed, and a second worker gets SIGTERM.
$second->{handle}->signal('KILL');
finish($second);
sql(q{SELECT jobq.test_clock('50 min')});
$self->begun($id, 3, 'what was held by one that was killed is begun by the other');
$run->{handle}->signal('TERM');
append_to_file("$folder/go", 'go');
is(finish($run), 0, 'it ends at SIGTERM');
is(sql("SELECT state, attempt FROM jobq.jobs WHERE id = $id"), 'completed|3', 'when the job has');

# The lease of a failing job is lost: the error of the job is still reported.
append_to_file("$folder/throw", 'throw');
unlink "$folder/go";
$run = $self->start;
$id = push_job('hold');
$self->begun($id, 1, 'another long job begins');
sql(q{SELECT jobq.test_clock('70 min')});
wait_for($node, 'its lease is over', "SELECT state <> 'running' OR attempt > 1 FROM jobq.jobs WHERE id = $id");
append_to_file("$folder/go", 'go');
says($run, qr/is not leased with this token/, 'that its lease was lost is reported');
says($run, qr/the true reason/, 'so is why it has failed');
unlink "$folder/throw";
ends($id, 'it ends');

# A job can be settled only once.
$id = push_job('once, released, throws');
says($run, qr/after its release/, 'an exception after a release is reported as it is');
like(slurp_file("$folder/failed"), qr/after its release/, 'failed() is called');
is(state_of($id), 'scheduled|0|', 'the release counts');
$id = push_job('settles twice');
ends($id, 'a job that is settled twice ends');
like(state_of($id), qr/^completed\|1\|/, 'only the first time counts');

# A job tells its progress, and has a log.
my $told = push_job('tell');
wait_for($node, 'the progress of a job is seen',
	qq{SELECT progress = 40 AND message = 'soon\x{ef}\x{bf}\x{bd}' FROM jobq.status($told)});
append_to_file("$folder/told", 'told');
ends($told, 'it ends');
is(sql(qq{SELECT string_agg(concat_ws(' ', l ->> 'level', l ->> 'message'), ', ') FROM jobq.jobs, jsonb_array_elements(log) AS l WHERE id = $told}),
	'info first line, warning second line', 'its lines are kept');

# A release is not an error.
is(attempts('settles twice'), '1 2', 'Laravel counts a release as an attempt');
is(sql("SELECT string_agg(event, ' ' ORDER BY at, event DESC) FROM jobq.history($id)"), 'enqueued info started completed',
	'jobq tells of a release, and of no error');
is(sql("SELECT coalesce(sum(jsonb_array_length(errors)), 0) FROM jobq.jobs WHERE id = $id"), 0, 'it keeps none');

# A worker gets SIGTERM while waiting for jobs.
$run->{handle}->signal('TERM');
is(finish($run), 0, 'it ends');
$run = start_work('laravel', 7200);
wait_for($node, 'a worker waits', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE '%FROM jobq.reserve(%' AND state = 'active'
	AND pid <> pg_backend_pid()});
$run->{handle}->signal('TERM');
is(finish($run), 0, 'a worker that waits for two hours ends at SIGTERM');

# Many jobs at once.
is(artisan('bulk', 50, 'run'), '1 statements, 50 events', 'many jobs are one statement');
is(artisan('show', 'clear'), 52, 'a queue is cleared');
is(state_of($later), 'cancelled|0|cancelled', 'of what has not begun');

# Failed jobs of Laravel are dead letters.
my @dead = split /\n/, sql("SELECT id FROM jobq.dead_letters ORDER BY id");
is(scalar @dead, 2, 'there are dead letters');
sql(q{SELECT jobq.create_queue('others', mode => 'consumer'), jobq.enqueue('other', queue => 'others')});
sql(q{SELECT jobq.reject(id, token, 'no job of Laravel') FROM jobq.reserve('{others}', wait => '5 min')});
my $failed = artisan('queue:failed');
like($failed, qr/\b$_\b.*default.*laravel.*Tests.Work/, "queue:failed shows $_") foreach @dead;
unlike($failed, qr/other/, 'and nothing of others');
my $uuid = sql("SELECT payload ->> 'uuid' FROM jobq.dead_letters WHERE id = $dead[0]");
like(artisan('queue:retry', "id=$uuid"), qr/has been pushed back/, 'queue:retry finds a failed job by its uuid, too');
is(sql("SELECT count(*) FROM jobq.dead_letters WHERE id = $dead[0]"), 0, 'its dead letter is gone');
is(sql("SELECT state, attempt FROM jobq.jobs WHERE payload ->> 'uuid' = '$uuid'"), 'ready|0', 'it is a job again');
like(artisan('queue:forget', "id=$dead[1]"), qr/deleted/, 'queue:forget');
is(sql(q{SELECT string_agg(kind, ' ') FROM jobq.dead_letters}), 'other', 'deletes a dead letter');
$run = $self->start;
wait_for($node, 'it fails again', q{SELECT count(*) = 2 FROM jobq.dead_letters});
is(artisan('queue:prune-failed', '--hours=24'), '0 entries deleted!', 'queue:prune-failed leaves what is younger');
like(artisan('queue:prune-failed', '--hours=-2'), qr/deleted/, 'queue:prune-failed');
push_job('give up');
wait_for($node, 'one more fails', q{SELECT count(*) = 2 FROM jobq.dead_letters});
artisan('queue:flush');
is(sql(q{SELECT string_agg(kind, ' ') FROM jobq.dead_letters}), 'other', 'queue:flush deletes those of Laravel');

# Clearing a queue also cancels running jobs.
unlink "$folder/go";
$id = push_job('hold');
$self->begun($id, 1, 'a job is held');
is(artisan('show', 'clear'), 1, 'a queue is cleared');
is(state_of($id), 'cancelled|0|cancelled', 'of what runs, too');
append_to_file("$folder/go", 'go');
says($run, qr/is not leased with this token/, 'the worker is told');
$run->{handle}->signal('TERM');
is(finish($run), 0, 'it ends');

# Names of queues, and numbers with many digits in a payload.
sql(q{ALTER ROLE CURRENT_USER SET jobq.create_queues = consumer});
$id = push_job('run', 0, '');
is(sql("SELECT queue FROM jobq.jobs WHERE id = $id"), 'laravel', 'the empty name is the default');
my $long = 'invoices of customer ' . 'x' x 200;
$id = push_job('run', 0, $long);
like(sql("SELECT queue FROM jobq.jobs WHERE id = $id"), qr/^invoices of customer x+~[0-9a-f]{16}$/, 'a long name is cut');
$run = start_work($long);
ends($id, 'it is the same name for a worker');
$run->{handle}->signal('TERM');
is(finish($run), 0, 'it ends');
$id = push_job('raw', '{"id": 50755254975729665, "amount": 12345678901234567890.0123, "text": "a\u0000"}');
is(sql("SELECT payload FROM jobq.jobs WHERE id = $id"), '{"id": 50755254975729665, "text": "base64:YQA=", "amount": 12345678901234567890.0123}',
	'numbers keep their digits');

$node->stop;
no_failed_assertion($node);
done_testing();
