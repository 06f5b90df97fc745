# The requirements for a consumer library in any language.
#
# The consumers of test/consumers obey the payload: {"do": "fail"}, "odd", "reject", "retry"
# (once), "later" (once), "bad result", "long result", or "hold".  "odd" fails in a way which
# the language allows, but few programs expect.  "hold" ends when the file "go" exists.  "tell",
# "settle", "work", "kill", "echo" and "hang" (like "hold", without a look at the lease) serve single tests below.  The consumers write notes into files:
# each begun job with the token, and each handler informed of a lost lease.  The result of a job
# is the token of the acknowledgement.

package JobqLibrary;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Spec;
use FindBin;
use IPC::Run ();
use JobqPooler;
use JobqProgram;
use JobqTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(library_node language_programs with_decimal_comma is_shown try_kinds try_stops try_clean_up try_library try_many try_ahead try_untold try_tells try_settles try_kills try_behind_pooler try_numbers);

# Consumers do not end by themselves, so END kills the remaining ones.
my @running;

END
{
	local $?;
	kill('KILL', map { pid_of($_) } grep { $_->{handle}->pumpable } @running);
}

# A server for consumers, which connect by environment variables, with room for 256 leases.
# Skips the test file if the command @needs cannot run.
sub library_node
{
	my ($what, @needs) = @_;

	plan(skip_all => "$what is not installed")
	  unless eval { IPC::Run::run(\@needs, '<', File::Spec->devnull, '>', \my $out, '2>', \my $err) };

	my $node = jobq_node('main', 'jobq.ready_entries = 1024', allows_streaming => 1);
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION jobq');
	$ENV{PGHOST} = $node->host;
	$ENV{PGPORT} = $node->port;
	$ENV{PGDATABASE} = 'postgres';
	return $node;
}

# The program of test/consumers, or the example of libraries, with this name in each language that has a driver here: a list of
# a language and a command.  The program in C, if there is one, is compiled.
sub language_programs
{
	my ($node, $name) = @_;
	my %needs = (
		python => [ '/usr/bin/python3', '-c', 'import psycopg' ],
		php => [ 'php', '-r', 'exit(extension_loaded("pdo_pgsql") && function_exists("pcntl_alarm") ? 0 : 1);' ],
		node => [ 'node', '-e', 'require("pg")' ]);
	my %suffix = (python => 'py', php => 'php', node => 'js');
	my $program = $node->basedir . "/$name";
	my ($include, $lib) = map { $node->config_data($_) } '--includedir', '--libdir';
	my $sources = "$FindBin::RealBin/../../libraries/c";
	# a program needs the sanitizers of its libpq
	my @sanitizers = grep { /^-fsanitize=/ } split ' ', $node->config_data('--cflags');
	my $source = sub { return "$FindBin::RealBin/../" . ($name eq 'example' ? "../libraries/$_[0]" : 'consumers') . "/$name" };
	my @found;

	$ENV{NODE_PATH} = join ':', grep { $_ } $ENV{NODE_PATH}, '/usr/share/nodejs';
	foreach my $language (sort keys %needs)
	{
		my $there = eval { IPC::Run::run($needs{$language}, '<', File::Spec->devnull, '>', \my $out, '2>', \my $err) };

		note("$language has no driver for PostgreSQL") unless $there;
		push @found, [ $language, $needs{$language}[0], $source->($language) . ".$suffix{$language}" ] if $there;
	}
	return @found unless -e $source->('c') . '.c';
	command_ok(
		[ 'cc', @sanitizers, '-O1', '-Wall', '-Wextra', '-Wno-unused-parameter', '-Werror', "-I$sources", "-I$include", '-I/usr/include/postgresql',
			'-o', $program, $source->('c') . '.c', "$sources/jobq_consumer.c", "-L$lib", "-Wl,-rpath,$lib", '-lpq', '-lpthread', '-lm' ],
		"$name.c compiles");
	return @found, [ 'c', $program ];
}

# The words before a command that give it a locale with a decimal comma, if the locale can be created.
sub with_decimal_comma
{
	my $locales = PostgreSQL::Test::Utils::tempdir();

	return eval { IPC::Run::run([ 'localedef', '-i', 'de_DE', '-f', 'UTF-8', "$locales/de_DE.UTF-8" ], '>', \my $out, '2>', \my $err) }
	  ? ('env', "LOCPATH=$locales", 'LC_ALL=de_DE.UTF-8')
	  : ();
}

# The manual contains this file of libraries/ verbatim; a worker has at most 15 lines.
sub is_shown
{
	my ($file) = @_;
	my $tree = "$FindBin::RealBin/../..";
	my $text = slurp_file("$tree/libraries/$file");

	cmp_ok($text =~ tr/\n//, '<=', 15, "libraries/$file is short");
	return ok(index(slurp_file("$tree/doc/libraries.md"), $text) >= 0,
		"doc/libraries.md shows libraries/$file as it is");
}

# Start a consumer with a separate environment.
sub start
{
	my ($self, %environment) = @_;

	local @ENV{ qw(NAME PGAPPNAME QUEUES PARALLEL FOLDER), keys %environment } =
	  (@$self{qw(name name queue parallel folder)}, values %environment);
	my $run = start_program(@{ $self->{command} });
	push @running, $run;
	return $run;
}

sub sql { return $_[0]{node}->safe_psql('postgres', $_[1]); }

sub enqueue
{
	my ($self, $payload, $n) = @_;

	return $self->sql(
		qq{SELECT jobq.enqueue('thumbnail', '$payload', '$self->{queue}', max_attempts => 5, backoff => 'fixed 1ms')
		   FROM generate_series(1, @{[ $n || 1 ]})});
}

# The notes of this kind: [ job id, token ].
sub notes
{
	my ($self, $what) = @_;
	my $file = "$self->{folder}/$what";

	return map { [ split / / ] } split /\n/, -e $file ? slurp_file($file) : '';
}

# Wait until the job has begun $times times.
sub begun
{
	my ($self, $id, $times, $name) = @_;
	my $n;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if ($n = grep { $_->[0] == $id } $self->notes('began')) >= $times;
		usleep(100_000);
	}
	return is($n, $times, "$self->{name}: $name");
}

# Wait until $n jobs have begun, and 0.2 s longer for their end.
sub go_on
{
	my ($self, $n) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		usleep(100_000);
		last if $self->notes('began') >= $n;
	}
	usleep(200_000);
	return cmp_ok(scalar($self->notes('began')), '>=', $n, "$self->{name}: others go on meanwhile");
}

sub ends
{
	my ($self, $name, @ids) = @_;
	my $ids = join ',', @ids;

	return wait_for($self->{node}, "$self->{name}: $name",
		"SELECT bool_and(finished_at IS NOT NULL) FROM jobq.jobs WHERE id IN ($ids)");
}

sub is_sql
{
	my ($self, $query, $expected, $name) = @_;

	return is($self->sql($query), $expected, "$self->{name}: $name");
}

# Each job was acknowledged with the token of its last claim.
sub holds
{
	my ($self) = @_;
	my (%last, @wrong);

	foreach ($self->notes('began'))
	{
		$last{ $_->[0] } = $_->[1] if $_->[1] > ($last{ $_->[0] } || 0);
	}
	my @acked = map { [ split /\|/ ] } split /\n/,
	  $self->sql(qq{SELECT id, result ->> 'token' FROM jobq.jobs WHERE queue = '$self->{queue}' AND state = 'completed'});
	cmp_ok(scalar @acked, '>', 0, "$self->{name}: some jobs are completed");
	is(join(' ', map { $_->[0] } grep { $_->[1] != $last{ $_->[0] } } @acked),
		'', "$self->{name}: each job was acknowledged by who had begun it last");
	$self->is_sql(
		qq{SELECT count(*) FROM jobq.jobs WHERE queue = '$self->{queue}' AND finished_at IS NULL},
		'0', 'no job is left');
	return;
}

# The sessions of the consumers, for a FROM clause.
sub sessions
{
	my ($self) = @_;

	return "pg_stat_activity WHERE application_name = '$self->{name}'";
}

sub new
{
	my ($class, $node, $name, $command) = @_;
	my $self = bless {
		node => $node,
		name => $name,
		queue => $name,
		command => $command,
		parallel => 2,
		folder => PostgreSQL::Test::Utils::tempdir()
	}, $class;

	$self->sql("SELECT jobq.create_queue('$name', mode => 'consumer')");
	return $self;
}

# A single consumer, and disturbances of a consumer.  "parallel" is the number of jobs at a
# time; with "restart", the server is restarted, too.
sub try_library
{
	my ($node, $name, $command, %more) = @_;
	my $self = JobqLibrary->new($node, $name, $command);
	my $go = "$self->{folder}/go";
	my $lease = sub { return "SELECT lease_until FROM jobq_internal.lease_slots() WHERE job_id = $_[0]" };

	$self->{parallel} = $more{parallel} || 2;

	# jobs which end during an acknowledgement are acknowledged together
	my @ids = split /\n/, $self->enqueue('{}', 50);
	my $acks = "@{[ $self->sessions ]} AND query ~ 'jobq[.]ack' AND wait_event_type = 'Lock'";
	my $locker = $node->background_psql('postgres');
	$locker->query_safe('BEGIN; LOCK TABLE jobq_internal.archive');
	my $run = $self->start;
	wait_for($node, "$name: jobs are acknowledged", "SELECT count(*) > 0 FROM $acks");
	$self->go_on(4);
	$locker->query_safe('COMMIT');
	$self->ends('all jobs are done', @ids);
	$self->is_sql("SELECT DISTINCT state, attempt FROM jobq.jobs WHERE id BETWEEN $ids[0] AND $ids[-1]",
		'completed|1', 'each at the first attempt');
	$self->is_sql("SELECT count(DISTINCT xmin::text) < 50 FROM jobq_internal.archive WHERE id BETWEEN $ids[0] AND $ids[-1]",
		't', 'several are acknowledged in one transaction');

	# a job fails during endless acknowledgements; the current acknowledgements wait for a lock
	if ($self->{parallel} > 1)
	{
		my $other = $node->background_psql('postgres');
		my $n = $self->notes('began');

		$locker->query_safe('BEGIN; LOCK TABLE jobq_internal.archive');
		$self->enqueue('{}');
		wait_for($node, "$name: one is acknowledged", "SELECT count(*) = 1 FROM $acks");
		my $partition = $self->sql(q{SELECT relation::regclass FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted AND query ~ 'jobq[.]ack'});
		$other->query_until(qr/begun/, "\\echo begun\nBEGIN; LOCK TABLE $partition IN SHARE MODE;\n");
		my $locks = "SELECT count(*) = 1 FROM pg_locks WHERE relation = '$partition'::regclass AND mode = 'ShareLock'";
		wait_for($node, "$name: and others will wait", "$locks AND NOT granted");
		my $failing = $self->enqueue('{"do": "fail"}');
		$self->enqueue('{}', 2);
		$self->go_on($n + 4);
		$locker->query_safe('COMMIT');
		wait_for($node, "$name: they do", "$locks AND granted");
		wait_for($node, "$name: they do not keep it from being told of one that has failed",
			"SELECT error ~ 'no image' FROM jobq.jobs WHERE id = $failing");
		$run->{handle}->pump_nb;
		unlike($run->{err}, qr/no answer/, "$name: at once, and not when they have been given up");
		$other->query_safe('COMMIT');
		$other->quit;
	}

	# how jobs end; if an end cannot be stored, each end of the same batch is sent alone
	my %id = map { $_ => $self->enqueue(qq({"do": "$_"})) } 'fail', 'odd', 'reject', 'retry', 'later', 'bad result';
	$id{deep} = $self->enqueue('{"do": "fail", "more": ' . '[' x 999 . ']' x 999 . '}');
	$id{long} = $self->enqueue('{"do": "fail", "more": ' . '7' x 5000 . '}');
	$self->ends('others end in all ways', values %id);
	my $how = sub { return "SELECT state, attempt, coalesce(error, '') FROM jobq.jobs WHERE id = $id{$_[0]}" };
	like($self->sql($how->('fail')), qr/^dead\|5\|.*no image/, "$name: an exception is the error of the attempt");
	like($self->sql($how->($_)), qr/^dead\|5\|./, "$name: $_: so is any other, and a payload that is not as the handler wants it")
	  foreach 'odd', 'deep', 'long';
	$self->is_sql($how->('reject'), 'dead|1|this is no image', 'a job is rejected');
	$self->is_sql("SELECT state, attempt FROM jobq.jobs WHERE id = $id{retry}", 'completed|2', 'a job is tried again');
	$self->is_sql("SELECT state, attempt FROM jobq.jobs WHERE id = $id{later}", 'completed|1',
		'a job is given back, and no attempt is charged');
	like($self->sql($how->('bad result')), qr/^dead\|5\|.*result/, "$name: a result that cannot be kept is an error");

	# a lease is extended, and lost
	my $id = $self->enqueue('{"do": "hold"}');
	$self->begun($id, 1, 'a long job begins');
	my $until = $self->sql($lease->($id));
	wait_for($node, "$name: its lease is extended", "SELECT (@{[ $lease->($id) ]}) > '$until'");
	$self->sql(q{SELECT jobq.test_clock('1 hour')});
	$self->begun($id, 2, 'when its lease is over, somebody has it again');
	my @tokens = map { $_->[1] } grep { $_->[0] == $id } $self->notes('began');
	wait_for_file("$self->{folder}/lost", "$name: the handler is told of it");
	is(join(' ', map { "@$_" } $self->notes('lost')), "$id $tokens[0]", "$name: the one that had it");
	like($run->{err} . do { $run->{handle}->pump_nb; $run->{err} }, qr/lease/, "$name: so is the log");
	$self->is_sql("SELECT state, attempt FROM jobq.status($id)", 'running|1', 'nothing is acknowledged, and nothing charged');

	# the connections break
	my $old = $self->sql("SELECT string_agg(pid::text, ',') FROM @{[ $self->sessions ]}");
	$self->sql("SELECT pg_terminate_backend(pid) FROM @{[ $self->sessions ]}");
	wait_for($node, "$name: the connections are made again",
		"SELECT count(*) > 0 FROM @{[ $self->sessions ]} AND pid NOT IN ($old) AND query ~ 'extend'");
	append_to_file($go, 'go');
	$self->ends('the job ends', $id);
	$self->is_sql("SELECT state, attempt, result ->> 'token' FROM jobq.jobs WHERE id = $id",
		"completed|1|$tokens[1]", 'acknowledged by who had it all the time');

	# SIGTERM during a statement which ends with an error
	$locker->query_safe('BEGIN; LOCK TABLE jobq_internal.archive');
	$id = $self->enqueue('{}');
	wait_for($node, "$name: it is at ack()", "SELECT count(*) = 1 FROM $acks");
	$run->{handle}->signal('TERM');
	$self->sql("SELECT pg_cancel_backend(pid) FROM $acks");
	says($run, qr/canceling statement due to user request/, "$name: the error is told");
	$locker->quit;
	is(finish($run), 0, "$name: it ends at SIGTERM before an error");
	$self->is_sql("SELECT state, attempt FROM jobq.jobs WHERE id = $id", 'completed|1', 'after all is told');

	# a stop
	$run = $self->start;
	unlink $go;
	@ids = split /\n/, $self->enqueue('{"do": "hold"}', 5);
	wait_for($node, "$name: it holds more than it runs",
		"SELECT count(*) > $self->{parallel} FROM jobq_internal.lease_slots() WHERE job_id BETWEEN $ids[0] AND $ids[-1]");
	$self->begun($ids[$_], 1, 'it runs some') foreach 0 .. $self->{parallel} - 1;
	$run->{handle}->signal('TERM');
	wait_for($node, "$name: at SIGTERM, jobs that have not begun are given back",
		"SELECT count(*) = 5 - $self->{parallel} FROM jobq.jobs WHERE id BETWEEN $ids[0] AND $ids[-1] AND state = 'ready' AND attempt = 0");
	append_to_file($go, 'go');
	is(finish($run), 0, "$name: it ends when what runs has ended");
	$self->is_sql(
		"SELECT state, attempt, count(*) FROM jobq.jobs WHERE id BETWEEN $ids[0] AND $ids[-1] GROUP BY 1, 2 ORDER BY 1",
		"completed|1|$self->{parallel}\nready|0|@{[ 5 - $self->{parallel} ]}", 'and nothing is lost');

	# a permanent error ends the consumer, after its running jobs have ended
	unlink $go;
	$self->sql("SELECT jobq.cancel_many(queue => '$name', state => 'waiting'), jobq.create_queue('$name 2', mode => 'consumer')");
	my $hopeless = $self->start(QUEUES => "$name,$name 2");
	$id = $self->enqueue('{"do": "hold"}');
	$self->begun($id, 1, 'a job begins');
	$self->sql("SELECT jobq.drop_queue('$name 2')");
	says($hopeless, qr/could not reserve/, "$name: a queue is not there any more") if $self->{parallel} > 1;
	append_to_file($go, 'go');
	isnt(finish($hopeless), 0, "$name: it ends");
	$self->is_sql("SELECT state, attempt FROM jobq.jobs WHERE id = $id", 'completed|1', 'after it has told of what it had begun');
	@ids = split /\n/, $self->enqueue('{"do": "hold"}', 5);

	# a crash
	unlink $go;
	$run = $self->start;
	$self->begun($ids[0], 1, 'another one begins');
	$run->{handle}->signal('KILL');
	finish($run);
	append_to_file($go, 'go');
	$run = $self->start;
	$self->sql(q{SELECT jobq.test_clock('2 hours')});
	$self->ends('what was held by one that was killed is done', @ids);

	# the server restarts; no lease ends for a while afterwards, so this test is the last
	if ($more{restart})
	{
		unlink $go;
		$id = $self->enqueue('{"do": "hold"}');
		$self->begun($id, 1, 'one more begins');
		$node->restart;
		wait_for($node, "$name: the lease is extended after a restart of the server",
			"SELECT count(*) > 0 FROM @{[ $self->sessions ]} AND query ~ 'extend'");
		append_to_file($go, 'go');
		$self->ends('it ends', $id);
		$self->is_sql("SELECT state, attempt FROM jobq.jobs WHERE id = $id", 'completed|1', 'at the first attempt');
	}
	$run->{handle}->signal('TERM');
	is(finish($run), 0, "$name: it stops when it has nothing to do");
	$self->is_sql("SELECT count(*) FROM jobq_internal.lease_slots() WHERE consumer = '$name'", '0', 'it leaves nothing behind');
	$self->holds;
	$self->sql(q{SELECT jobq.test_clock('0')});
	return;
}

sub leases { return "jobq_internal.lease_slots() WHERE consumer = '$_[0]{name}'"; }

# Wait until each lease of the consumer lasts at least $seconds seconds from now.
sub holds_on
{
	my ($self, $seconds, $name) = @_;
	my $now = $self->sql('SELECT clock_timestamp()');

	return wait_for($self->{node}, "$self->{name}: $name",
		"SELECT min(lease_until) > '$now'::timestamptz + interval '$seconds s' FROM @{[ $self->leases ]}");
}

# The consumer holds 40 jobs for several leases.  The role can hold the jobs of 112 calls of
# reserve(); 84 other calls leave 28.  "calls" is the number of calls by which the consumer
# takes the jobs.  The number is 1 if the consumer takes no jobs while others run, else more
# than half of the 28.
sub try_many
{
	my ($node, $name, $command, $calls) = @_;
	my $self = JobqLibrary->new($node, $name, $command);
	my $jobs = "jobq.jobs WHERE queue = '$name'";
	my ($run, $n);

	$self->sql(qq{
SELECT jobq.create_queue('$name others', mode => 'consumer');
SELECT count(jobq.enqueue('other', queue => '$name others')) FROM generate_series(1, 84)});
	$self->is_sql(qq{
CREATE TABLE other AS SELECT r.id, r.token
	FROM generate_series(1, 84) AS i, LATERAL jobq.reserve('{"$name others"}', 1 + i * 0, '1 hour', '5 min') AS r;
SELECT count(*) FROM other}, '84', 'other jobs are held');
	$self->{parallel} = 40;
	foreach my $more ((1) x ($calls - 1), 41 - $calls)
	{
		$self->enqueue('{"do": "hold"}', $more);
		$run ||= $self->start(LEASE => 6, BATCH => 40);
		$n += $more;
		wait_for($node, "$name: $n are held", "SELECT count(*) = $n FROM @{[ $self->leases ]}");
	}
	$self->holds_on(20, 'many jobs are held for several leases');
	$self->is_sql("SELECT DISTINCT state, attempt FROM $jobs", 'running|1', 'none is lost');
	append_to_file("$self->{folder}/go", 'go');
	wait_for($node, "$name: they end", "SELECT bool_and(finished_at IS NOT NULL) FROM $jobs");
	$self->is_sql("SELECT DISTINCT state, attempt FROM $jobs", 'completed|1', 'at the first attempt');
	$run->{handle}->signal('TERM');
	is(finish($run), 0, "$name: it stops");
	$self->holds;
	$self->is_sql(q{SELECT count(jobq.ack(id, token)) FROM other}, '84', 'the other jobs are still held');
	$self->sql('DROP TABLE other');
	return;
}

# By default a consumer holds only jobs which begin soon: if the running job takes longer than
# the earlier jobs did, another consumer gets the jobs behind it.
sub try_ahead
{
	my ($node, $name, $command) = @_;
	my $self = JobqLibrary->new($node, $name, $command);

	$self->{parallel} = 1;
	my $run = $self->start(DEFAULTS => 1);
	$self->ends('short jobs are done', split /\n/, $self->enqueue('{}', 200));
	my ($long, @others) = split /\n/,
	  $self->sql(qq{SELECT jobq.enqueue('thumbnail', CASE n WHEN 1 THEN '{"do": "hold"}' ELSE '{}' END::jsonb, '$name')
		FROM generate_series(1, 6) AS n});
	$self->begun($long, 1, 'a long one begins');
	my $other = $self->start(DEFAULTS => 1);
	$self->ends('what was to come after it is done by another one', @others);
	$self->is_sql("SELECT state FROM jobq.status($long)", 'running', 'meanwhile');
	append_to_file("$self->{folder}/go", 'go');
	$self->ends('it ends', $long);
	$self->is_sql("SELECT DISTINCT state, attempt FROM jobq.jobs WHERE queue = '$name'", 'completed|1', 'no attempt is charged');
	$_->{handle}->signal('TERM') foreach $run, $other;
	is(join(' ', map { finish($_) } $run, $other), '0 0', "$name: they stop");
	$self->holds;
	return;
}

# While the consumer cannot report the end of jobs, it keeps their leases, and takes only a
# limited number of other jobs.
sub try_untold
{
	my ($node, $name, $command) = @_;
	my $self = JobqLibrary->new($node, $name, $command);
	my $locker = $node->background_psql('postgres');

	$locker->query_safe('BEGIN; LOCK TABLE jobq_internal.archive');
	my @ids = split /\n/, $self->enqueue('{}', 40);
	my $run = $self->start(LEASE => 6);
	wait_for($node, "$name: it takes jobs", "SELECT count(*) > 0 FROM @{[ $self->leases ]}");
	$self->holds_on(20, 'what cannot be told is held for several leases');

	# two jobs run, and three are held ahead
	cmp_ok(scalar($self->notes('began')), '<=', 10, "$name: not everything is taken meanwhile");
	$locker->query_safe('COMMIT');
	$locker->quit;
	$self->ends('all is told then', @ids);
	$self->is_sql("SELECT DISTINCT state, attempt FROM jobq.jobs WHERE queue = '$name'", 'completed|1', 'at the first attempt');
	$run->{handle}->signal('TERM');
	is(finish($run), 0, "$name: it stops");
	$self->holds;
	return;
}

# The reports of a handler about its running job.
sub try_settles
{
	my ($node, $name, $command) = @_;
	my $self = JobqLibrary->new($node, $name, $command);

	$self->sql('DROP TABLE IF EXISTS done; CREATE TABLE done (job bigint)');
	my $run = $self->start;
	my $id = $self->enqueue('{"do": "settle"}');
	wait_for_file("$self->{folder}/settles", "$name: a handler acknowledges its job");
	$self->is_sql("SELECT count(*) FROM done", 0, 'the transaction is open');
	$self->is_sql("SELECT state, attempt FROM jobq.status($id)", 'running|2', 'the job runs, after a transaction that was rolled back');
	# a beat of the consumer passes: a job of another process is extended
	if ($name !~ /php/)
	{
		my $other = $self->enqueue('{"do": "hang"}');
		$self->begun($other, 1, 'another job begins');
		my $until = "SELECT lease_until FROM jobq_internal.lease_slots() WHERE job_id = $other";
		my $first = $self->sql($until);
		wait_for($node, "$name: the lease of the other job is extended", "SELECT ($until) > '$first'");
	}
	append_to_file("$self->{folder}/go", 'go');
	$self->ends('the job ends', $id);
	$self->is_sql("SELECT state, attempt, result FROM jobq.jobs WHERE id = $id", 'completed|2|{"own": true}', 'the result is the one of the transaction');
	$self->is_sql("SELECT string_agg(job::text, ' ') FROM done", $id, 'the effects of one attempt are there');
	$self->is_sql(qq{SELECT l ->> 'message' FROM jobq.jobs, jsonb_array_elements(log) AS l WHERE id = $id},
		'before', 'lines before the end are kept');
	$self->enqueue('{}');
	$self->is_sql("SELECT jobq.wait_queue('$name', '5 min')", 't', 'the consumer goes on');
	$run->{handle}->signal('TERM');
	is(finish($run), 0, "$name: it stops");
	unlike($run->{err}, qr/lease/, "$name: no lease was lost");
	return;
}

sub try_tells
{
	my ($node, $name, $command) = @_;
	my $self = JobqLibrary->new($node, $name, $command);

	$self->sql("SELECT jobq.alter_queue('$name', carry => '{app.tenant}')");
	my $run = $self->start;
	my $id = $node->safe_psql('postgres', "SET app.tenant = 'seven'; SELECT jobq.enqueue('thumbnail', '{\"do\": \"tell\"}', '$name')");
	wait_for($node, "$name: progress is shown", "SELECT progress = 40 AND message = 'soon' FROM jobq.jobs WHERE id = $id");
	append_to_file("$self->{folder}/go", 'go');
	$self->ends('the job ends', $id);
	$self->is_sql(
		qq{SELECT string_agg(concat_ws(' ', l ->> 'level', replace(l ->> 'message', '": "', '":"')), ', ' ORDER BY n) FROM jobq.jobs, jsonb_array_elements(log) WITH ORDINALITY AS l (l, n) WHERE id = $id},
		qq(info first line, warning second \xe2\x80\xa8 line\xef\xbf\xbd, info {"app.tenant":"seven"}),
		'lines are kept in their order, and the handler has got what the job has taken along');
	$run->{handle}->signal('TERM');
	is(finish($run), 0, "$name: it stops");
	$self->holds;
	return;
}

# Two of many jobs kill their consumer, which is restarted each time: no other job is charged
# for the crash.
sub try_kills
{
	my ($node, $name, $command) = @_;
	my $self = JobqLibrary->new($node, $name, $command);
	my $left = "SELECT count(*) FROM jobq.jobs WHERE queue = '$name' AND finished_at IS NULL";
	my $run = $self->start(DEFAULTS => 1);
	my $kills = 0;

	$self->sql(qq{SELECT count(jobq.enqueue('thumbnail', CASE WHEN n IN (40, 42) THEN '{"do": "kill"}' ELSE '{"do": "work"}' END::jsonb,
		'$name', max_attempts => 2, backoff => 'fixed 1ms')) FROM generate_series(1, 100) AS n});
	while ($kills < 20)
	{
		for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
		{
			$run->{handle}->pump_nb if $run->{handle}->pumpable;
			last if !$run->{handle}->pumpable || $self->sql($left) eq '0';
			usleep(100_000);
		}
		last if $run->{handle}->pumpable;
		finish($run);
		$kills++;
		$self->sql("SELECT jobq.test_clock('@{[ 10 * $kills ]} min')");
		wait_for($node, "$name: the leases of the one that has ended are over ($kills)", "SELECT count(*) = 0 FROM @{[ $self->leases ]}");
		$run = $self->start(DEFAULTS => 1);
	}
	$self->is_sql("SELECT string_agg(payload ->> 'do' || ' ' || attempt, ', ') FROM jobq.jobs WHERE queue = '$name' AND state = 'dead'",
		'kill 2, kill 2', 'jobs that end their consumer are dead letters after two attempts');
	$self->is_sql("SELECT state, attempt, errors, count(*) FROM jobq.jobs WHERE queue = '$name' AND state <> 'dead' GROUP BY 1, 2, 3",
		'completed|1||98', 'no other is charged');
	cmp_ok($kills, '<', 20, "$name: $kills consumers were ended");
	wait_for($node, "$name: the last one has begun", "SELECT count(*) > 0 FROM @{[ $self->sessions ]}");
	$run->{handle}->signal('TERM');
	is(finish($run), 0, "$name: it stops");
	$self->holds;
	$self->sql(q{SELECT jobq.test_clock('0')});
	return;
}

# A consumer has handlers by kind.  A job of a kind without a handler comes back uncharged, until
# a consumer of the next version has the handler.
sub try_kinds
{
	my ($node, $name, $command) = @_;
	my $self = JobqLibrary->new($node, $name, $command);
	my $enqueue = sub { return $self->sql("SELECT jobq.enqueue('$_[0]', '{}', '$name', max_attempts => 1)") };
	my $old = $self->start(KINDS => 'thumbnail,other', NAME => "$name-old");
	# a name that an object of JavaScript has without being told
	my $new = $enqueue->('constructor');

	wait_for($node, "$name: a job of an unknown kind is given back", "SELECT state = 'scheduled' FROM jobq.status($new)");
	says($old, qr/no handler for kind "constructor"/, "$name: the log tells");
	my @known = map { $enqueue->($_) } 'other', 'thumbnail';
	$self->ends('jobs of known kinds are done', @known);
	$self->is_sql("SELECT attempt FROM jobq.status($new)", '0', 'no attempt is charged');
	my $next = $self->start(KINDS => 'thumbnail,constructor', NAME => "$name-next");
	$self->ends('a consumer of the next version does it', $new);
	$self->is_sql("SELECT state, attempt FROM jobq.jobs WHERE id = $new", 'completed|1', 'at the first attempt');
	$_->{handle}->signal('TERM') foreach $old, $next;
	is(join(' ', map { finish($_) } $old, $next), '0 0', "$name: they stop");
	$self->holds;
	return;
}

# A stop with a timeout gives back the jobs that do not end: a job that is told in time, and a job
# that looks at nothing.
sub try_stops
{
	my ($node, $name, $command, $parallel) = @_;
	my $self = JobqLibrary->new($node, $name, $command);

	$self->{parallel} = $parallel;
	my $run = $self->start(STOP => 2, WAIT => 1);
	my @ids = ($self->enqueue('{"do": "hang"}'));
	push @ids, $self->enqueue('{"do": "hold"}') if $parallel > 1;
	$self->begun($_, 1, 'a job begins') foreach @ids;
	my $short = $self->enqueue('{}');
	$run->{handle}->signal('TERM');
	is(finish($run), 0, "$name: it ends at SIGTERM, though jobs do not");
	like($run->{err}, qr/given back, because the consumer stops/, "$name: the log tells");
	$self->is_sql("SELECT count(*) FROM @{[ $self->leases ]}", '0', 'no lease is left');
	$self->is_sql("SELECT DISTINCT state, attempt FROM jobq.jobs WHERE id IN (" . join(',', @ids) . ")", 'ready|0',
		'the jobs are given back, and no attempt is charged');

	# in time, nothing is given back
	append_to_file("$self->{folder}/go", 'go');
	$run = $self->start(STOP => 100);
	$self->ends('the next consumer does them', @ids, $short);
	unlink "$self->{folder}/go";
	my $late = $self->enqueue('{"do": "hang"}');
	$self->begun($late, 1, 'another one begins');
	$run->{handle}->signal('TERM');
	append_to_file("$self->{folder}/go", 'go');
	is(finish($run), 0, "$name: it ends with its job");
	$self->is_sql("SELECT state, attempt FROM jobq.jobs WHERE id = $late", 'completed|1', 'a job that ends in time is completed');
	$self->holds;
	return;
}

# If the library can interrupt a handler, a job is given back at a stop with a timeout when its
# handler has ended, and no other consumer gets the job before.
sub try_clean_up
{
	my ($node, $name, $command) = @_;
	my $self = JobqLibrary->new($node, $name, $command);
	my $run = $self->start(STOP => 1, WAIT => 1, LEASE => 4);
	my $id = $self->enqueue('{"do": "clean up"}');
	my $until = "SELECT lease_until FROM jobq_internal.lease_slots() WHERE job_id = $id";

	$self->begun($id, 1, 'a job begins');
	$run->{handle}->signal('TERM');
	wait_for_file("$self->{folder}/told", "$name: the handler is interrupted");
	my $first = $self->sql($until);
	wait_for($node, "$name: the lease is extended while the handler cleans up", "SELECT ($until) > '$first'");
	append_to_file("$self->{folder}/go", 'go');
	is(finish($run), 0, "$name: the consumer ends with the handler");
	$self->is_sql("SELECT state, attempt FROM jobq.jobs WHERE id = $id", 'ready|0', 'the job is given back, and no attempt is charged');
	return;
}

# Consumers behind a pooler with one connection to the server.  The consumers poll only
# every ten minutes; notifications wake the consumers over direct connections.
sub try_behind_pooler
{
	my ($node, $name, $command, $consumers) = @_;

  SKIP:
	{
		skip 'pgbouncer is not installed', 1 unless grep { -x "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin';
		my $self = JobqLibrary->new($node, $name, $command);
		my $pooler = JobqPooler->new($node, pool_mode => 'transaction', default_pool_size => 1);
		my $direct = "host=@{[$node->host]} port=@{[$node->port]} dbname=postgres user=$ENV{PGUSER}";
		my @runs = map {
			$self->start(
				PGHOST => $pooler->{dir},
				PGPORT => $pooler->{port},
				WAIT => 600,
				LISTEN => $direct)
		} 1 .. $consumers;

		wait_for($node, "$name: all listen", "SELECT count(*) = $consumers FROM pg_stat_activity WHERE query ~ '^LISTEN'");
		for my $round (1 .. 3)
		{
			my @ids = split /\n/, $self->enqueue('{}', 20);

			$self->ends("they are woken, and acknowledge ($round)", @ids);
		}
		$self->is_sql("SELECT DISTINCT state, attempt FROM jobq.jobs WHERE queue = '$name'", 'completed|1', 'each is done once');
		$_->{handle}->signal('TERM') foreach @runs;
		is(join(' ', map { finish($_) } @runs), join(' ', (0) x $consumers), "$name: they stop behind the pooler");
		$self->holds;
		$pooler->stop;
	}
	return;
}

# Numbers too large for the native types of the language keep all their digits on the way to the
# handler, and back in its result.  The same holds for job ids beyond 2^53.
sub try_numbers
{
	my ($node, $name, $command) = @_;
	my $self = JobqLibrary->new($node, $name, $command);

	$self->sql(q{SELECT setval('jobq_internal.job_id_seq', greatest(last_value, 9007199254740993)) FROM jobq_internal.job_id_seq});
	my $run = $self->start;
	my $id = $self->enqueue('{"do": "echo", "value": {"id": 50755254975729665, "amount": 12345678901234567890.0123, "half": 0.50}}');
	cmp_ok($id, '>', 9007199254740992, "$name: the id of a job is large");
	$self->ends('it ends', $id);
	is(join(' ', map { $_->[0] } $self->notes('began')), $id, "$name: the handler gets the id as it is");
	$self->is_sql("SELECT result ->> 'id', result ->> 'amount', (result ->> 'half')::float FROM jobq.jobs WHERE id = $id",
		'50755254975729665|12345678901234567890.0123|0.5', 'numbers keep their digits');
	$run->{handle}->signal('TERM');
	is(finish($run), 0, "$name: it ends");
	return;
}

1;
