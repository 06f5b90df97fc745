# The driver for Laravel, with the parts of Laravel that Debian packages.

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
	'php', '-r', 'foreach (["Queue", "Events", "Bus", "Database"] as $part) is_readable("/usr/share/php/Illuminate/$part/autoload.php") || exit(1);
		exit(extension_loaded("pdo_pgsql") && function_exists("pcntl_alarm") ? 0 : 1);');
my @php = ('php', "$FindBin::RealBin/../consumers/laravel.php");
my $self = JobqLibrary->new($node, 'laravel', [ @php, 'work', 'urgent|laravel' ]);
my $folder = $ENV{FOLDER} = $self->{folder};

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub artisan
{
	my ($out, $err) = run_command([ @php, @_ ]);

	is($err, '', "@_ has no errors");
	return $out;
}

sub push_job { return artisan('push', @_); }

sub state_of { return sql("SELECT state, attempt, coalesce(error, '') FROM jobq.jobs WHERE id = $_[0]"); }

sub ends { return wait_for($node, $_[1], "SELECT finished_at IS NOT NULL FROM jobq.jobs WHERE id = $_[0]"); }

sql(q{SELECT jobq.create_queue('urgent', mode => 'consumer')});

my %id = map { $_ => push_job($_) } 'run', 'fail', 'give up', 'once more', 'plain';
my $later = push_job('run', 3600);
is(sql("SELECT string_agg(DISTINCT kind, ' ' ORDER BY kind) FROM jobq.jobs"), 'Tests\\Plain Tests\\Work', 'a kind is the name of a class');
is_deeply([ run_command([ @php, 'push', 'odd key' ]) ],
	[ '', 'The decoded property name is invalid' ], 'what cannot be kept is not pushed, and not as nothing');
is(artisan('show', 'size'), 6, 'the size of the queue');

my $run = $self->start;
ends($id{$_}, "$_: it ends") foreach sort keys %id;
is(state_of($id{run}), 'completed|1|', 'a job is done');
is(state_of($id{fail}), 'failed|3|Exception: no image' . "\x{ef}\x{bf}\x{bd}", 'a job fails as often as Laravel says; the exception is kept');
is(state_of($id{'give up'}), 'failed|1|Exception: this is no image', 'a job that says so is a dead letter');
like(state_of($id{'once more'}), qr/^completed\|2\|/, 'a job that is released comes again');
is(state_of($id{plain}), 'completed|1|', 'a job that deletes itself is done');
like(slurp_file("$folder/data"), qr/\{"a":\["\\u0000b",1\.5,\[\]\]\} /, 'data comes as they were pushed');
like(slurp_file("$folder/failed"), qr/^no image.*this is no image|this is no image.*no image/s, 'failed() is called');
is(state_of($later), 'scheduled|0|', 'a job that is delayed waits');

# a lease is lost
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

# one is killed, and one is told to stop
$second->{handle}->signal('KILL');
finish($second);
sql(q{SELECT jobq.test_clock('50 min')});
$self->begun($id, 3, 'what was held by one that was killed is begun by the other');
$run->{handle}->signal('TERM');
append_to_file("$folder/go", 'go');
is(finish($run), 0, 'it ends at SIGTERM');
is(sql("SELECT state, attempt FROM jobq.jobs WHERE id = $id"), 'completed|3', 'when the job has');

is(artisan('show', 'clear'), 1, 'a queue is cleared');
is(state_of($later), 'cancelled|0|cleared', 'of what has not begun');

$node->stop;
no_failed_assertion($node);
done_testing();
