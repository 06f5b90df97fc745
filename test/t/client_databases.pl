# The program jobq with several databases: results are merged and name the database, and work
# goes on in each database without the others.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run ();
use JobqProgram;
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

$JobqTest::max_databases = 8;

my $conf = "jobq.databases = '*'\n";
my ($node, $jobq) = client_node($conf);
my $other = jobq_node('other', $conf);
my $dir = PostgreSQL::Test::Utils::tempdir();
my @both = ('-d', 'north', '-d', 'south');
$other->start;

sub run_jobq
{
	my (@words) = @_;
	my ($out, $err);

	IPC::Run::run([ $jobq, @words ], '<', File::Spec->devnull, '>', \$out, '2>', \$err);
	chomp($out, $err);
	return ($out, $err, $? >> 8);
}

sub sql { return $node->safe_psql(@_); }

# The rows of a command as JSON, as SQL sees them.
sub rows
{
	my ($columns, @words) = @_;
	my ($out, $err, $status) = run_jobq(@words, '--json');

	return $node->safe_psql('postgres', "SELECT $columns FROM jsonb_array_elements(\$x\$$out\$x\$) WITH ORDINALITY AS r(j, n)") . ($status ? " status $status" : '');
}

my $setup = q{CREATE EXTENSION jobq;
SELECT jobq.create_queue('line', mode => 'consumer');
SELECT jobq.enqueue('a', queue => 'line')};
foreach my $name (qw(north south))
{
	$node->safe_psql('postgres', "CREATE DATABASE $name");
	$node->safe_psql($name, $setup);
}
$other->safe_psql('postgres', 'CREATE DATABASE north');
$other->safe_psql('north', $setup);
sql('south', q{SELECT jobq.enqueue('a', queue => 'line')});

# Lists.
is(rows(q{string_agg(j ->> 'database' || ' ' || (j ->> 'ready'), ', ' ORDER BY n) FILTER (WHERE j ->> 'name' = 'line')}, 'queues', @both),
	'north 1, south 2', 'queues of both, in order');
is(rows(q{string_agg(j ->> 'database' || ' ' || (j ->> 'id'), ', ' ORDER BY n)}, @both, 'list', '-n', '1'), 'north 1, south 2', 'jobs: so many of each');
is(rows(q{string_agg(j::text, ', ')}, 'queues', '-d', 'north') =~ /database/, '', 'a single database has no such column');
like((run_jobq('queues', @both))[0], qr/\Adatabase +name .*\n(?:north .*\n)+(?:south .*\n?)+\z/, 'as a table');
foreach my $command (qw(audit failures dead kinds workers schedules batches))
{
	is(rows(q{count(*) FILTER (WHERE j ->> 'database' NOT IN ('north', 'south'))}, $command, @both), '0', "$command is merged");
}
is(rows(q{string_agg(DISTINCT regexp_replace(j ->> 'database', '@.*:', ':'), ', ')}, 'queues', '-d', 'north', '-d', $other->connstr('north')),
	join(', ', sort map { 'north:' . $_->port } $node, $other), 'databases of the same name have their server');
like((run_jobq('queues', '-d', 'north', '-d', 'north'))[1], qr/\Ajobq: error: database "north" is given twice$/m, 'twice the same');

# Errors.
foreach my $command ([qw(enqueue a)], [qw(show 1)], [qw(cancel 1)], [qw(check line:1)])
{
	my ($out, $err, $status) = run_jobq(@$command, @both);

	is("$out|$status", '|2', "$command->[0] takes one database");
	like($err, qr/"jobq $command->[0]" takes a single database, and --dbname is given 2 times/, 'and says so');
}
is(rows(q{string_agg(DISTINCT j ->> 'database', ',')}, 'queues', @both, '-d', 'nowhere'), 'north,south status 3', 'those that can be reached are there');
like((run_jobq('queues', @both, '-d', 'nowhere'))[1], qr/database "nowhere" does not exist/, 'and the error');
my ($out, $err, $status) = run_jobq('queues', '-d', 'north', '-d', 'postgres');
like("$out|$err|$status", qr/^north .*\|jobq: in database postgres:\njobq: error: relation .*\|1$/ms, 'one without the extension');
is((run_jobq('doctor', '-d', 'north', '-d', 'nowhere'))[2], 3, 'doctor: a database cannot be reached');
sql('south', q{SELECT jobq.pause('line')});
like((run_jobq('doctor', @both))[0], qr/^warning +south: queue "line" is paused/m, 'doctor names the database of a finding');
sql('south', q{SELECT jobq.resume('line')});

# Metrics.
($out, $err, $status) = run_jobq('metrics', @both);
is("$err|$status", '|0', 'metrics');
like($out, qr/^jobq_jobs\{database="north",queue="line",state="ready"\} 1\n(?:jobq_jobs.*\n)*jobq_jobs\{database="south",queue="line",state="ready"\} 2$/m,
	'of both below one head');
my %types;
$types{$_}++ foreach $out =~ /^# TYPE (\S+)/mg;
cmp_ok(scalar(keys %types), '>', 30, 'with all families');
is_deeply([ grep { $types{$_} > 1 } keys %types ], [], 'each once');
like($out, qr/^# EOF\z/m, 'to the end');
is(($out =~ s/\{database="(?:north|south)"\}//gr =~ s/\{database="(?:north|south)",/{/gr =~ tr/{//), ((run_jobq(qw(metrics -d north)))[0] . (run_jobq(qw(metrics -d south)))[0]) =~ tr/{//,
	'no sample is missing');
SKIP:
{
	skip 'there is no prometheus_client for Python', 1 if system('python3 -c "import prometheus_client.openmetrics.parser" 2>/dev/null') != 0;
	append_to_file("$dir/metrics", "$out\n");
	is(system('python3', '-c', q{
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
families = list(text_string_to_metric_families(open(sys.argv[1]).read()))
assert {s.labels.get('database') for f in families for s in f.samples} == {'north', 'south'}}, "$dir/metrics"), 0, 'a parser accepts them');
}

# Work: one of the databases does not exist yet.
my $done = "$dir/done";
my $work = start_program($jobq, 'work', 'line', '--exec', qq{echo "\$JOBQ_JOB_ID" >>$done; [ "\$(cat)" != '"wait"' ] || { touch $dir/waits; sleep 2; }}, @both, '-d', 'late');
says($work, qr/database "late" does not exist/, 'work: a database is missing');
foreach my $name (qw(north south))
{
	$node->poll_query_until($name, q{SELECT bool_and(state = 'completed') FROM jobq.jobs}) or die;
}
pass('the work of the others is done');
# the database appears complete: without the extension, the work would end
$node->safe_psql('postgres', 'CREATE DATABASE prepared');
$node->safe_psql('prepared', $setup);
$node->safe_psql('postgres', 'ALTER DATABASE prepared RENAME TO late');
$node->poll_query_until('late', q{SELECT bool_and(state = 'completed') FROM jobq.jobs}) or die;
pass('and its work, when it exists');

# a signal reaches each process once: a running job ends first
my $waits = sql('south', q{SELECT jobq.enqueue('a', '"wait"', queue => 'line')});
wait_for_file($done, 'a command runs');
for (1 .. 600) { last if -e "$dir/waits"; usleep(100_000); }
kill 'TERM', pid_of($work);
is(finish($work) >> 8, 0, 'it ends by a signal');
is(sql('south', "SELECT state, attempt FROM jobq.status($waits)"), 'completed|1', 'after the job that ran');

# the processes end with the parent
$work = start_program($jobq, 'work', 'line', '--exec', 'true', @both);
my $consumers = q{SELECT count(*) FROM pg_stat_activity WHERE datname IN ('north', 'south') AND application_name ~ 'jobq' AND query ~ 'reserve'};
$node->poll_query_until('postgres', $consumers, '2') or die;
kill 'KILL', pid_of($work);
$node->poll_query_until('postgres', $consumers, '0') or die;
pass('and when the parent is killed');
eval { finish($work) };

# with nohup, a closing terminal ends nothing: a database that is missing is tried again
$work = start_program('sh', '-c', q{trap '' HUP; exec "$@"}, 'sh', $jobq, 'work', 'line', '--exec', 'true', '-d', 'north', '-d', 'last');
says($work, qr/database "last" does not exist/, 'nohup: a database is missing');
kill 'HUP', pid_of($work);
$node->safe_psql('postgres', 'CREATE DATABASE prepared');
$node->safe_psql('prepared', $setup);
$node->safe_psql('postgres', 'ALTER DATABASE prepared RENAME TO last');
$node->poll_query_until('last', q{SELECT bool_and(state = 'completed') FROM jobq.jobs}) or die;
pass('and its work is done after SIGHUP');
kill 'TERM', pid_of($work);
is(finish($work) >> 8, 0, 'SIGTERM ends it');

# a refused queue ends all
$work = start_program($jobq, 'work', 'nothing here', '--exec', 'true', @both, '--stop-when-empty');
is(finish($work) >> 8, (run_jobq('work', 'nothing here', '--exec', 'true', '-d', 'north', '--stop-when-empty'))[2], 'the exit status is that of a single database');

# The live screen.
SKIP:
{
	skip 'no terminal', 10 unless eval { require IO::Pty; require JobqScreen; 1 } && `$jobq top 2>&1 </dev/null` !~ /without ncurses/;
	my $top = JobqScreen->new(24, 120, $jobq, 'top', '--interval', '0.2', @both);

	ok($top->shows(qr{^line +consumer .* north$}m) && $top->shows(qr{^line +consumer .* south$}m), 'top: queues of both');
	$top->type('/line');
	$top->type("\r");
	ok($top->shows(qr{QUEUES.*\nline .* north\nline .* south\n}), 'in order');
	$top->type('jp');
	ok($top->shows(qr{Pause queue "line"\?}), 'one is chosen');
	$top->type('y');
	ok($top->shows(qr{^line +paused .* south$}m), 'and paused');
	is(sql('north', q{SELECT paused FROM jobq.queues WHERE name = 'line'}) . sql('south', q{SELECT paused FROM jobq.queues WHERE name = 'line'}), 'ft', 'in its database only');
	$top->type('q');
	$top->finish;

	# one of the databases does not exist yet
	$top = JobqScreen->new(24, 250, $jobq, 'top', '--interval', '0.2', '-d', 'later', '-d', 'south');
	ok($top->shows(qr{\Ajobq top  \(no connection: later\)  south\n(?:.*\n)*line +paused .* south\n}m), 'top: a database is missing, and the other is shown');
	ok($top->shows(qr{no connection: .*database "later" does not exist; trying again}), 'with the error');
	$node->safe_psql('postgres', 'ALTER DATABASE late RENAME TO later');
	ok($top->shows(qr{\Ajobq top  later, south\n(?:.*\n)*line +consumer .* later\n}m), 'it is there when it exists');
	$top->type('q');
	is($top->finish, 0, 'top ends');
	$top = JobqScreen->new(24, 120, $jobq, 'top', '-d', 'nowhere', '-d', 'nothing');
	is($top->finish >> 8, 3, 'a database must be reached');
}

# Passwords: each goes only to the database for which it was typed.
SKIP:
{
	skip 'no terminal', 5 unless eval { require IO::Pty; require JobqScreen; 1 };
	foreach ([ $node, 'first secret' ], [ $other, 'second secret' ])
	{
		my ($server, $password) = @$_;
		my $hba = slurp_file($server->data_dir . '/pg_hba.conf');

		$server->safe_psql('north', "CREATE ROLE keyed LOGIN PASSWORD '$password'; SELECT jobq.grant_privilege('keyed', 'monitor')");
		unlink $server->data_dir . '/pg_hba.conf';
		$server->append_conf('pg_hba.conf', "local all keyed scram-sha-256\n$hba");
		$server->reload;
	}
	my $there = $other->connstr('north');

	foreach my $second ([ "$there password='second secret'" ], [ $there, 'second secret' ])
	{
		my $screen = JobqScreen->new(24, 120, $jobq, 'queues', '-U', 'keyed', '-d', 'north', '-d', $second->[0]);
		my $port = $node->port;

		ok($screen->shows(qr/Password for database "north" at \S+:$port:/), 'password of the first') and $screen->type("first secret\n");
		if (defined $second->[1])
		{
			$port = $other->port;
			ok($screen->shows(qr/Password for database "north" at \S+:$port:/), 'password of the second') and $screen->type("$second->[1]\n");
		}
		ok($screen->shows(qr/^north\S+ +line .*^north\S+ +line /ms), @$second > 1 ? 'both are typed' : 'the other is in the connection string');
		$screen->finish;
	}
}

# The names of the databases are the same while one of them cannot be reached.
$other->stop;
is(rows(q{string_agg(DISTINCT regexp_replace(j ->> 'database', '@.*:', ':'), ', ')}, 'queues', '-d', 'north', '-d', $other->connstr('north')),
	'north:' . $node->port . ' status 3', 'a database keeps its name in the output');

done_testing();
