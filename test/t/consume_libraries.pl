# The consumers of all libraries: handlers by kind, many handlers on few connections, a stop with a timeout, acknowledgment in the
# handler's transaction, and the queue for unit tests.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqLibrary;
use JobqProgram;
use JobqTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes 'usleep';

my $node = library_node('a compiler', 'cc', '--version');

my @consumers = language_programs($node, 'consumer');
foreach (@consumers)
{
	my ($language, @command) = @$_;

	try_kinds($node, "$language-kinds", \@command);
	try_stops($node, "$language-stops", \@command, $language eq 'php' ? 1 : 2);
	try_settles($node, "$language-settles", \@command);
	next if $language ne 'python';
	try_settles($node, 'python-settles-async', [ 'env', 'ASYNC=1', @command ]);
	try_kinds($node, 'python-kinds-async', [ 'env', 'ASYNC=1', @command ]);
	try_stops($node, 'python-stops-async', [ 'env', 'ASYNC=1', @command ], 2);
}

# the examples of the manual
my %arguments = (php => [ 'pgsql:', 'example-php' ], c => ['{example-c}']);
foreach (language_programs($node, 'example'))
{
	my ($language, @command) = @$_;
	my $queue = "example-$language";
	my $enqueue = "SELECT jobq.enqueue('thumbnail.make', payload, '$queue') FROM unnest";

	$node->safe_psql('postgres', "SELECT jobq.create_queue('$queue', mode => 'consumer')");
	$node->safe_psql('postgres', qq[$enqueue(ARRAY['{"image": 7}', '{}']::jsonb[]) AS payload]);
	my $run = start_program(@command, @{ $arguments{$language} || [$queue] });
	wait_for($node, "$language: the example does its jobs",
		"SELECT count(*) = 2 FROM jobq.jobs WHERE queue = '$queue' AND finished_at IS NOT NULL");
	is( $node->safe_psql('postgres',
			"SELECT state, attempt, coalesce(result ->> 'file', error) FROM jobq.jobs WHERE queue = '$queue' ORDER BY id"),
		'completed|1|' . ($language eq 'c' ? '' : '7.png') . "\ndead|1|no image", "$language: as it says");
	$run->{handle}->signal('TERM');
	is(finish($run), 0, "$language: the example stops");
}

foreach (language_programs($node, 'fake'))
{
	my ($language, @command) = @$_;

	is((run_command(\@command))[0], 'all hold', "$language: unit tests of handlers without a database");
}

# 256 handlers of a process share the connections of the process
$node->append_conf('postgresql.conf', 'jobq.ready_entries = 2048');
$node->restart;
foreach (grep { $_->[0] ne 'php' } @consumers)
{
	my ($language, @command) = @$_;
	my $self = JobqLibrary->new($node, "$language-wide", \@command);

	$self->{parallel} = 256;
	my $run = $self->start(STOP => 1);
	$self->enqueue('{"do": "hang"}', 256);
	wait_for($node, "$language: 256 jobs are held", "SELECT running = 256 FROM jobq.queues WHERE name = '$self->{queue}'");
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if $self->notes('began') == 256;
		usleep(100_000);
	}
	is(scalar $self->notes('began'), 256, "$language: 256 handlers run");
	my $connections = $self->sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = '$self->{name}'");
	cmp_ok($connections, '>', 0, "$language: the consumer is connected");
	cmp_ok($connections, '<=', 4, "$language: by at most 4 connections");
	append_to_file("$self->{folder}/go", 'go');
	is($self->sql("SELECT jobq.wait_queue('$self->{queue}', '5 min')"), 't', "$language: all jobs end");
	$run->{handle}->signal('TERM');
	is(finish($run), 0, "$language: the consumer stops");
}

$node->stop;
no_failed_assertion($node);
done_testing();
