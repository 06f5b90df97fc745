# Values for function calls: expected and unexpected ones.

package Values;

use strict;
use warnings FATAL => 'all';

# Expected values by name of the parameter.
my @queues = qw(default limited fair short outside memory carrying made another);
my @kinds = qw(echo none breaks asks down more commits changing settings on_failure:breaks foreign);
my %expected = (
	queue => \@queues,
	kind => \@kinds,
	on_failure => ['fuzz.late(jsonb,jobq.job_context)'],
	handler => [qw{fuzz.echo(jsonb) fuzz.none() fuzz.changing(jsonb) fuzz.commits(jsonb) pg_catalog.now() jobq_internal.activate()}],
	backoff => [ 'fixed 1s', 'exponential 1s cap 10s jitter 20%', 'list 0s,1s,5s', 'exponential 0s' ],
	rate => [ '5 per second', '10 per 5 seconds burst 20', 'none' ],
	throttle => [ '3 failures in 5 seconds', '2 failures in 1 minute' ],
	cron => [ '* * * * *', 'every 1 second', '@daily', '*/5 1-3 * * mon', '0 0 30 2 *', 'every 1000000 days' ],
	timezone => [qw(UTC Europe/Madrid America/Sao_Paulo Nowhere/City)],
	missed => [qw(once all skip)],
	overlap => [qw(allow skip queue)],
	mode => [qw(worker consumer)],
	lease => [qw(durable memory)],
	notify => [qw(relay transactional off)],
	keep => [qw(all no_payload nothing)],
	group_on_failure => [ 'wait', 'continue', 'wait 1 ms', 'wait 50 ms', 'wait 1 hour' ],
	fair => [qw(off jobs cpu)],
	group_scope => [qw(queue database)],
	scope => [qw(kind queue database)],
	unique_key => [qw(a b c)],
	group_key => [qw(a b c)],
	level => [qw(debug info warning error)],
	channel => [qw(news jobq_queue_default)],
	role => [qw(fuzz_producer fuzz_other fuzz_nobody)],
	from => [qw(fuzz_producer fuzz_other fuzz_nobody)],
	to => [qw(fuzz_producer fuzz_other fuzz_nobody)],
	privilege => [qw(produce consume monitor operate manage)],
	tenant => [ 'a', 'b', 'setting app.tenant', 'header tenant', 'schema' ],
	carry => [ qw(app.tenant search_path work_mem statement_timeout DateStyle role jobq.max_payload), 'no.such.setting', '' ],
	recycle => [qw(never each)],
	name => [ @queues, 'night' ],
);

my %odd = (
	text => [
		q{''}, q{' '}, q{'%s%n%d%p'}, q{E'\\x01\\x7f'}, q{'äöü€😀'}, q{repeat('x', 63)}, q{repeat('€', 40)},
		q{repeat('x', 127)}, q{repeat('x', 128)}, q{repeat('a,', 5000)}, q{repeat('x', 100000)}, q{'"; SELECT 1; --'},
		q{'*'}, q{'null'}, q{'-1'}, q{'99999999999999999999 per second'}, q{'0 failures in 0s'}, q{'fixed 999999999d'},
		q{'list ' || repeat('1s,', 100) || '1s'}, q{'every 0s'}, q{'* * * * * * *'}, q{'99 99 99 99 99'}, q{'*/0 * * * *'}
	],
	integer => [qw(0 1 -1 2 7 100 2147483647 -2147483648 65536 1001)],
	bigint => [qw(0 1 -1 9223372036854775807 -9223372036854775808 4294967296)],
	real => [qw(0 50 100 -1 101 'NaN' 'Infinity' '-Infinity' 1e38 1e-45)],
	boolean => [qw(true false)],
	interval => [
		map { "'$_'" } '0', '1 second', '-1 second', '1 month -30 days', '100 years', '178000000 years',
		'-178000000 years', '1 microsecond', '30 days', '-9223372036854775807 microseconds'
	],
	'timestamp with time zone' => [
		'now()', map { "'$_'" } 'infinity', '-infinity', '294276-12-31 23:59:59+00',
		'4713-01-01 BC', '2000-01-01', '2038-01-19', 'yesterday'
	],
	oid => [qw(0 1 4294967295 1259)],
	regrole => [ map { "'$_'" } qw(0 1 fuzz_nobody pg_monitor) ],
);

my @json = (
	'{}', '[]', 'null', '0', '"text"', 'true', '{"n": 1}', '{"tenant": "a"}', '{"tenant": 1e5}', '{"tenant": null}',
	'{"tenant": {"deep": []}}', '[1, [2, [3]]]', '{"": ""}', '1e1000', '"\u00e4"', '{"$result": "a"}',
	'{"$result": "a", "path": ["x", 0, -1]}', '{"$result": []}', '[{"$result": "1", "path": []}]'
);

sub new
{
	my ($class, $session) = @_;

	return bless { session => $session }, $class;
}

# A random element.
sub one { return $_[ int rand @_ ]; }

# True once in n calls.
sub rarely { return rand() < 1 / $_[0]; }

sub quote
{
	my ($text) = @_;

	$text =~ s/'/''/g;
	return "'$text'";
}

# Settings for a job that a queue may carry.
sub context
{
	my %settings = (
		'app.tenant' => [qw("a" "b" "" null 1 {})], search_path => [ '"fuzz, pg_temp"', '"\\""', '"x y z"' ],
		work_mem => [qw("1MB" "x")], statement_timeout => [qw("5ms" "1h" "-1")], 'no.such.setting' => ['"x"'],
		DateStyle => ['"ISO, DMY"'], role => ['"fuzz_super"'], '' => ['""']);
	my @some = grep { rarely(3) } keys %settings;

	return '{' . join(', ', map { qq{"$_": } . one(@{ $settings{$_} }) } @some) . '}';
}

# Details of a unique key.
sub tame_uniqueness
{
	return '{' . join(', ', grep { rarely(2) } '"for": "10 ms"', '"until": "start"', '"scope": ' . one(qw("kind" "queue" "database")),
		rarely(3) ? '"max": 2' : '"on_conflict": ' . one(qw("skip" "ignore" "replace" "merge" "reset"))) . '}';
}

sub uniqueness
{
	my %keys = (
		by => [ '["n"]', '["a", "b"]', '[]', '"n"' ], for => [ '"10 ms"', '"1 hour"', '"-1 s"' ], until => [qw("finish" "start" "end")],
		scope => [qw("kind" "queue" "database")], max => [qw(1 2 100 0)], on_conflict => [qw("skip" "ignore" "replace" "merge" "reset" "error")],
		merge => [ '"fuzz.merge(jsonb, jsonb)"', '"pg_catalog.jsonb_concat(jsonb, jsonb)"', '"fuzz.echo(jsonb)"' ], odd => ['1']);
	my @some = grep { rarely($_ eq 'odd' ? 20 : 4) } keys %keys;

	return '{' . join(', ', map { qq{"$_": } . one(@{ $keys{$_} }, rarely(10) ? 'null' : ()) } @some) . '}';
}

# Members of a workflow, valid and invalid.
sub step
{
	my ($n) = @_;
	my @members = ('"kind": "' . one(@kinds) . '"');

	push @members, qq{"name": "} . one('a' .. 'e') . '"' if rand() < 0.7;
	push @members, '"payload": ' . one(@json) if rand() < 0.6;
	push @members, '"needs": [' . join(', ', map { '"' . one('a' .. 'e') . '"' } 1 .. rand 3) . ']' if rarely(2);
	push @members, '"needs": ' . one(@json) if rarely(20);
	push @members, '"delay": ' . one('"1s"', '"x"', 5, '"-1s"', 'null') if rarely(6);
	push @members, '"queue": ' . one('"short"', '"outside"', 1, '""') if rarely(6);
	push @members, '"' . one(qw(priority max_attempts timeout run_at expires_at unique_key uniqueness group_key headers watch backoff odd)) .
		'": ' . one(@json, '5', '"1 hour"', '"infinity"') if rarely(3);
	return '{' . join(', ', @members) . '}';
}

sub jsonb
{
	return 'NULL::jsonb' if rarely(15);
	my $kind = int rand 12;

	return quote(one(@json)) . '::jsonb' if $kind < 6;
	return quote(step()) . '::jsonb' if $kind < 7;
	return quote('[' . join(', ', map { step() } 1 .. 1 + rand 5) . ']') . '::jsonb' if $kind < 9;
	return quote('{"' . one('steps', 'steps', 'jobs') . '": [' . join(', ', map { step() } 1 .. 1 + rand 6) . ']'
		  . one('', '', ', "name": "w"', ', "on_success": ' . step(), ', "on_finish": 1') . '}') . '::jsonb' if $kind < 11;
	return one(
		q{(repeat('[', 500) || repeat(']', 500))::jsonb},
		q{(SELECT jsonb_object_agg('k' || n, n) FROM generate_series(1, 2000) n)},
		q{(SELECT jsonb_agg(n) FROM generate_series(1, 5000) n)},
		q{to_jsonb(repeat('x', 200000))},
		q{(SELECT jsonb_build_object('steps', jsonb_agg(jsonb_build_object('name', n::text, 'kind', 'echo',
			'needs', CASE WHEN n > 1 THEN jsonb_build_array((n - 1)::text) ELSE '[]' END))) FROM generate_series(1, 200) n)});
}

# Names and types of a job's named options: the specific columns of jobq.inbox.
my @job_options;

sub read_job_options
{
	my ($query) = @_;

	@job_options = map { [ split /\|/ ] } split /\n/, $query->(q{
SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
WHERE attrelid = 'jobq.inbox'::regclass AND attnum > 0 AND attname NOT IN ('id', 'kind', 'payload')
ORDER BY attnum});
	return;
}

sub job_options { return @job_options; }

# An object of some options, invalid options, or options only for schedules.
sub options
{
	my ($self) = @_;
	my $n = @job_options / (1 + int rand 10);
	my @some = grep { rand(@job_options) < $n } grep { $_->[0] ne 'options' } @job_options;

	push @some, [qw(expires_after interval)] if rarely(10);
	push @some, [qw(odd text)] if rarely(10);
	push @some, grep { rarely(4) } [qw(context jsonb)], [qw(uuid uuid)], [qw(watch boolean)];
	return 'jsonb_build_object(' . join(', ', map { quote($_->[0]) . ', ' . value($self, $_->[1], $_->[0]) } @some) . ')';
}

# Sensible values by type of the parameter.
my %plain = (
	integer => [qw(1 2 5 10)],
	real => [qw(10 50)],
	interval => [ map { "'$_'" } '10 ms', '100 ms', '1 second', '1 minute' ],
	text => [ map { "'$_'" } qw(a b text) ],
	'timestamp with time zone' => [ 'now()', 'clock_timestamp()' ],
	boolean => [qw(true false)],
);

sub tame
{
	my ($self, $type, $name) = @_;

	if (my ($element) = $type =~ /^(.*)\[\]$/)
	{
		my $singular = $name =~ s/s$//r;

		return 'ARRAY[' . join(', ', map { tame($self, $element, $singular) } 1 .. 1 + rand 3) . "]::$type";
	}
	return quote(one(@{ $expected{$name} })) . "::$type" if $expected{$name} && $type =~ /^(text|name|regrole)$/;
	return quote(context()) . '::jsonb' if $type eq 'jsonb' && $name eq 'context';
	return quote(tame_uniqueness()) . '::jsonb' if $type eq 'jsonb' && $name eq 'uniqueness';
	return quote('{' . join(', ', grep { rarely(2) } '"watch": true', '"context": {"app.tenant": "a"}') . '}') . '::jsonb'
	  if $type eq 'jsonb' && $name eq 'options';
	return quote('{"steps": [{"name": "a", "kind": "echo"}, {"name": "b", "kind": "' . one(qw(echo breaks foreign)) . '", "needs": ["a"]}]}') . '::jsonb'
	  if $name eq 'definition';
	return quote('[{"kind": "echo"}, {"kind": "' . one(qw(echo breaks)) . '"}]') . '::jsonb' if $name eq 'steps';
	return quote('{"kind": "echo"}') . '::jsonb' if $name =~ /^on_/ && $type eq 'jsonb';
	return quote(one('{}', '{"n": 1}', '[1, 2]', '"text"')) . '::jsonb' if $type eq 'jsonb';
	return '(SELECT max(id) FROM jobq.batches' . one('', ' WHERE finished_at IS NULL') . ')' if $name eq 'batch_id';
	return "(SELECT max(id) FROM jobq.jobs WHERE state = '" . one(qw(ready running retryable scheduled blocked dead completed)) . "')"
	  if $type eq 'bigint';
	return one(@{ $plain{$type} || ['NULL'] }) . "::$type";
}

# A value for a parameter with this type and name.
sub value
{
	my ($self, $type, $name) = @_;
	my $expected = $expected{$name};

	return tame($self, $type, $name) if $self->{tame};
	return "NULL::$type" if rarely(12);
	return array($self, $1, $name) if $type =~ /^(.*)\[\]$/;
	return quote(context()) . '::jsonb' if $type eq 'jsonb' && $name eq 'context' && rand() < 0.8;
	return quote(uniqueness()) . '::jsonb' if $type eq 'jsonb' && $name eq 'uniqueness' && rand() < 0.8;
	return options($self) if $type eq 'jsonb' && $name eq 'options' && rand() < 0.8;
	return quote('{"a": ' . one(@json, 3) . '}') . '::jsonb' if $name eq 'fair_weights' && rand() < 0.8;
	return jsonb() if $type eq 'jsonb';
	return quote(one(@$expected)) . "::$type"
	  if $expected && rand() < 0.8 && $type =~ /^(text|name|regrole)$/;
	return "(SELECT max(id) FROM jobq.jobs WHERE state = '" . one(qw(ready running retryable scheduled blocked dead completed cancelled)) .
		"')" if $type eq 'bigint' && $name =~ /^(?:job_)?id$/ && rand() < 0.5;
	return "(SELECT max(id) FROM jobq.batches)" if $type eq 'bigint' && $name eq 'batch_id' && rand() < 0.7;
	return int(rand 300) . '::bigint' if $type eq 'bigint' && rand() < 0.7;
	return quote(one('0', '10 ms', '10 ms', '100 ms', '1 second')) . '::interval' if $type eq 'interval' && rand() < 0.7;
	return 'clock_timestamp()' if $type eq 'timestamp with time zone' && rand() < 0.5;
	return one(@{ $odd{$type} }) . "::$type" if $odd{$type};
	return "NULL::$type";
}

# Arrays: empty, with nulls, of several dimensions, with odd bounds, huge.
sub array
{
	my ($self, $type, $name) = @_;
	my $singular = $name =~ s/s$//r;
	my $kind = int rand 12;
	my $n = 1 + int rand 4;
	my @values = map { value($self, $type, $singular) } 1 .. $n;
	my $list = join ', ', @values;

	return "'{}'::$type\[]" if $kind == 0;
	return "ARRAY[ARRAY[$list], ARRAY[$list]]::$type\[]" if $kind == 1;
	return "ARRAY[ARRAY[ARRAY[$list]]]::$type\[]" if $kind == 2;
	return "array_fill($values[0], ARRAY[$n], ARRAY[" . one(-5, 0, 7, 2000000000) . "])" if $kind == 3;
	return "array_fill($values[0], ARRAY[2, $n], ARRAY[3, -3])" if $kind == 4;
	return "ARRAY[$list, NULL]::$type\[]" if $kind == 5;
	return "array_fill($values[0], ARRAY[" . one(600, 3000) . '])' if $kind == 6;
	return "ARRAY[$list]::$type\[]";
}

1;
