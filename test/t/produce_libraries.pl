# The libraries enqueue jobs in the caller's transaction with all options of enqueue(), and return
# the status of jobs.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run ();
use JSON::PP;
use JobqLibrary;
use JobqTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = library_node('a compiler', 'cc', '--version');
my $json = JSON::PP->new->canonical;
my $uuid = '00000000-0000-0000-0000-00000000000';
my $library = 0;				# the uuids end with its number
my $flat = 0;					# the library takes the keys of "options" beside the other options
my $digits = '12345678901234567890.0123';

$node->safe_psql('postgres', q{SELECT jobq.create_queue('mail', mode => 'consumer')});

# A value for each option of a job, and the columns of a job that show the effect.
my %options = (
	queue => 'mail',
	priority => 7,
	run_at => '2030-01-02 03:04:05+00',
	delay => '2 days',
	max_attempts => 4,
	retry_until => '2031-01-02 03:04:05+00',
	backoff => 'fixed 7s',
	timeout => '90 s',
	expires_at => '2032-01-02 03:04:05+00',
	unique_key => 'one',
	uniqueness => { on_conflict => 'replace', until => 'start' },
	group_key => 'g',
	headers => { trace => 'x' },
	tags => [ 'a', 'b' ],
	options => { uuid => "${uuid}0", watch => JSON::PP::true });
my @names = slurp_file("$FindBin::RealBin/../../src/produce/options.h") =~ /^JOB_OPTION\((\w+)/mg;
is(join(' ', sort keys %options), join(' ', sort @names), 'the test has a value for each option');

# Of options that exclude each other, a job has one: "run_at" or "delay" says which.
my $columns = q{priority, (run_at - now())::text ~ '^[12] day' AS delayed, run_at = '2030-01-02 03:04:05+00' AS planned, max_attempts,
	retry_until = '2031-01-02 03:04:05+00' AS limited, backoff, timeout_ms, expires_at = '2032-01-02 03:04:05+00' AS expires,
	unique_key, unique_until, group_key, headers, tags, payload, watch};

sub row
{
	return $node->safe_psql('postgres',
		"SELECT $columns, (SELECT queue FROM jobq.status($_[0])) FROM jobq_internal.job WHERE id = $_[0]");
}

sub enqueued
{
	my ($what, $kind) = @_;
	my $without = $what eq 'run_at' ? qr/^(delay|max_attempts|unique_key|uniqueness|options)$/ : qr/^(run_at|retry_until)$/;
	my %given = map { $_ => $options{$_} } grep { !/$without/ } @names;

	my $more = $flat ? delete $given{options} : {};
	%given = (%given, %{ $more || {} });
	return join("\t", 'enqueue', $kind, qq({"to": "Ann", "amount": 1.5}), $json->encode(\%given));
}

# The effect of the options in SQL, which each library must have, too.
my %expected;
foreach my $what ('run_at', 'delay')
{
	my $step = enqueued($what, 'sql statement');
	my (undef, $kind, $payload, $given) = split /\t/, $step;
	my %given = %{ $json->decode($given) };
	my $arguments = join ', ', map {
		my $value = $given{$_};
		my $text = ref $value eq 'ARRAY' ? '{' . join(',', @$value) . '}' : ref $value ? $json->encode($value) : $value;
		"$_ => '$text'"
	} sort keys %given;
	my $id = $node->safe_psql('postgres', "SELECT jobq.enqueue('$kind', '$payload', $arguments)");
	$expected{$what} = row($id);
	$node->safe_psql('postgres', "SELECT jobq.cancel($id)");
}

# The output of the program after these steps.
sub run_steps
{
	my ($name, $command, @steps) = @_;
	my ($out, $err) = run_command([ @$command, @steps ]);

	is($err, '', "$name: no error");
	return split /\n/, $out;
}

# The state, attempt and result of a status in JSON, with the digits of the result.
sub shown
{
	my ($text) = @_;
	my ($result) = $text =~ /"result": (\{[^}]*\}|\w+)/;
	my $status = $json->decode($text);

	return "$status->{state} $status->{attempt} $result";
}

sub try_produces
{
	my ($name, $command, %more) = @_;
	my $sql = sub { $node->safe_psql('postgres', $_[0]) };

	$options{options}{uuid} = $uuid . ++$library;
	my $number = $sql->("SELECT count(*) FROM jobq.jobs");

	# in the caller's transaction
	my $many = join "\t", 'many', $name, qq([{"n": 1}, [2], "three"]), '{"queue": "mail", "tags": ["many"]}';
	run_steps($name, $command, enqueued('delay', $name), $many, 'rollback');
	is($sql->("SELECT count(*) FROM jobq.jobs"), $number, "$name: after a rollback there is no job");
	my ($planned, $delayed, $ids, @none) = run_steps($name, $command,
		enqueued('run_at', $name), enqueued('delay', $name), $many, join("\t", 'many', $name, '[]', '{}'));
	is(row($planned), $expected{run_at}, "$name: options of a job at a time");
	is(row($delayed), $expected{delay}, "$name: options of a job after a delay");
	is($sql->("SELECT jobq.status('$options{options}{uuid}'::uuid) = jobq.status($delayed)"), 't', "$name: the keys of options are options");
	is($sql->("SELECT string_agg(payload::text, ' ' ORDER BY id) FROM jobq.jobs WHERE id IN (" . join(',', split / /, $ids) . ")"),
		'{"n": 1} [2] "three"', "$name: many jobs in order");

	# errors are the server's
	my @errors = run_steps($name, $command,
		join("\t", 'enqueue', $name, '{}', '{"queue": "mail", "prioritaet": 1}'),
		join("\t", 'enqueue', $name, '{}', '{"queue": "mail", "delay": "soon"}'),
		"status\t-1");
	is(join(' ', @errors), 'error 22023 error 22007 error JQ003', "$name: errors");

	# status and wait
	my ($id) = run_steps($name, $command, join("\t", 'enqueue', $name, '{}', '{"queue": "mail"}'));
	my $show = sub { return $flat ? shown($_[0]) : $_[0] };
	my @status = run_steps($name, $command, "status\t$id", "wait\t$id\t0.05");
	is(join(' ', map { $show->($_) } @status), 'ready 0 null ready 0 null', "$name: a job that waits");
	my ($out, $err) = ('', '');
	my $run = IPC::Run::start([ @$command, "wait\t$id\t100" ], '<', File::Spec->devnull, '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	wait_for($node, "$name: it waits",
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ 'jobq.wait' AND pid <> pg_backend_pid() AND state = 'active'});
	$sql->(qq{SELECT jobq.ack(id, token, '{"amount": $digits}') FROM jobq.reserve_job($id)});
	$run->finish;
	my $amount = $more{amount} || $digits;
	is($show->($out =~ s/\n$//r) =~ s/ //gr, qq(completed1{"amount":$amount}), "$name: it is woken, and the result has all digits");
	if (!$flat)
	{
		my ($done) = run_steps($name, $command, join("\t", 'untyped', "untyped $name", '{"a": 1}', 'mail', 3, '5 min', 2, '{x,y}',
			'{"on_conflict": "replace"}', 'one', '{"trace": "z"}', '{"watch": true}'));
		is($done . ' ' . $sql->("SELECT queue, priority, max_attempts, tags, headers, payload FROM jobq.jobs WHERE kind = 'untyped $name'"),
			'done mail|3|2|{x,y}|{"trace": "z"}|{"a": 1}', "$name: in SQL, no parameter needs a type");
		my $own = $uuid =~ s/^0/1/r . $library;
		($id) = run_steps($name, $command, "native\tnative $name\t$own");
		is($sql->(qq{SELECT run_at = '2040-01-02 03:04:05+00', timeout_ms, tags, (jobq.status('$own'::uuid)).id = id
			FROM jobq_internal.job WHERE id = $id}), 't|120000|{a,b}|t', "$name: values of the language");
	}
	$sql->("SELECT jobq.cancel_many(queue => 'mail', state => 'waiting'), jobq.cancel_many(kind => 'native $name')");
	return;
}

foreach (language_programs($node, 'producer'))
{
	my ($language, @command) = @$_;
	my @amount = $language eq 'php' ? (amount => qq("$digits")) : ();

	# in C, options are one object, and the status is JSON
	$flat = $language eq 'c';
	try_produces($language, \@command, @amount);
	try_produces('python-async', [ 'env', 'ASYNC=1', @command ]) if $language eq 'python';
	try_produces('php-emulated', [ 'env', 'EMULATE=1', @command ], @amount) if $language eq 'php';
}

$node->stop;
no_failed_assertion($node);
done_testing();
