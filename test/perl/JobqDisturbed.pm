# How a consumer must behave when its server refuses the end of a job, or stops answering.  The
# try_* functions test the libraries; the functions which disturb the server also serve tests of
# other consumers.

package JobqDisturbed;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IO::Socket::INET;
use IO::Socket::UNIX;
use JobqLibrary;
use JobqProgram;
use JobqTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(refuse_ends take_ends fail_commits let_commit try_refused try_commits try_silence try_silent_connect
  try_silent_lease try_silent_start);

# From now on only one finished job can have each tag; the end of another job with the same tag
# is refused.
sub refuse_ends
{
	my ($node) = @_;

	$node->safe_psql('postgres', q{DO $$
		DECLARE part regclass;
		BEGIN
			FOR part IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'jobq_internal.archive'::regclass LOOP
				EXECUTE format('CREATE UNIQUE INDEX "only one %s" ON %s (tags)', part::oid, part);
			END LOOP;
		END $$});
	return;
}

sub take_ends
{
	my ($node) = @_;

	$node->safe_psql('postgres', q{DO $$
		DECLARE index regclass;
		BEGIN
			FOR index IN SELECT oid FROM pg_class WHERE relname ~ '^only one' LOOP
				EXECUTE format('DROP INDEX %s', index);
			END LOOP;
		END $$});
	return;
}

# The next $times transactions which call ack() fail at commit, with this SQLSTATE.
sub fail_commits
{
	my ($node, $times, $code) = @_;

	$node->safe_psql('postgres', qq{
		ALTER FUNCTION jobq.ack(bigint, bigint, jsonb) RENAME TO ack_before_commit;
		CREATE SEQUENCE try_to_commit;
		CREATE TABLE to_commit (id bigint);
		CREATE FUNCTION commit_fails() RETURNS trigger LANGUAGE plpgsql AS \$\$
		BEGIN
			IF nextval('try_to_commit') <= $times THEN
				RAISE EXCEPTION 'it cannot commit' USING ERRCODE = '$code';
			END IF;
			RETURN NULL;
		END \$\$;
		CREATE CONSTRAINT TRIGGER fails AFTER INSERT ON to_commit DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION commit_fails();
		CREATE FUNCTION jobq.ack(id bigint, token bigint, result jsonb DEFAULT NULL) RETURNS void LANGUAGE sql AS \$\$
			INSERT INTO to_commit VALUES (id);
			SELECT jobq.ack_before_commit(id, token, result);
		\$\$});
	return;
}

sub let_commit
{
	my ($node) = @_;

	$node->safe_psql('postgres', q{
		DROP FUNCTION jobq.ack(bigint, bigint, jsonb);
		ALTER FUNCTION jobq.ack_before_commit RENAME TO ack;
		DROP TABLE to_commit;
		DROP FUNCTION commit_fails;
		DROP SEQUENCE try_to_commit});
	return;
}

# The server refuses the end of some jobs with a permanent error: these jobs lose their leases,
# and other jobs are done meanwhile.
sub try_refused
{
	my ($node, $name, $command) = @_;
	my $self = JobqLibrary->new($node, $name, $command);
	my $enqueue = "SELECT jobq.enqueue('thumbnail', '{}', '$name', tags => '{$name}', max_attempts => 1)";

	$self->{parallel} = 1;
	my $run = $self->start(LEASE => 6);
	$self->ends('a job is done', $self->sql($enqueue));
	refuse_ends($node);

	# more jobs than the consumer holds at a time
	my @refused = split /\n/, $self->sql("$enqueue FROM generate_series(1, 12)");
	says($run, qr/could not .*duplicate key/, "$name: the end of some is refused");
	$self->ends('others are done', split /\n/, $self->enqueue('{}', 20));
	$self->ends('those end', @refused);
	$self->is_sql("SELECT DISTINCT state, attempt, error ~ 'lease' FROM jobq.jobs WHERE id BETWEEN $refused[0] AND $refused[-1]",
		'dead|1|t', 'as their leases do');
	$run->{handle}->signal('TERM');
	is(finish($run), 0, "$name: it stops");
	$self->holds;
	take_ends($node);
	return;
}

# A commit can fail after the server has answered the statement; then no end is recorded.  Here
# error 54000 means a full NOTIFY queue, and not a result over jobq.max_payload.
sub try_commits
{
	my ($node, $name, $command) = @_;
	my $self = JobqLibrary->new($node, $name, $command);
	my $run = $self->start(LEASE => 10, PGOPTIONS => '-c jobq.max_payload=1kB');

	fail_commits($node, 14, '54000');
	my $id = $self->enqueue('{}');
	says($run, qr/it cannot commit/, "$name: a commit fails");
	$self->ends('the job ends after all', $id);
	$self->is_sql("SELECT state, attempt FROM jobq.jobs WHERE id = $id", 'completed|1', 'it was held until that could be told');
	let_commit($node);
	$id = $self->enqueue('{"do": "long result"}');
	$self->ends('one with a long result ends', $id);
	like($self->sql("SELECT state, attempt, error FROM jobq.jobs WHERE id = $id"), qr/^dead\|5\|.*result of \d+ bytes is larger/,
		"$name: that is an error of its attempts");
	$run->{handle}->signal('TERM');
	is(finish($run), 0, "$name: it stops");
	$self->holds;
	return;
}

# A connection goes silent: the consumer gives it up, and reports the running job on another
# connection.  With "long", the unsent report is a result too large for any socket buffer.
sub try_silence
{
	my ($node, $name, $command, $long) = @_;
	my $self = JobqLibrary->new($node, $name, $command);
	my $run = $self->start(LEASE => 4);
	my $id = $self->enqueue($long ? '{"do": "hold", "long": true}' : '{"do": "hold"}');
	my $tells = "SELECT max(pid) FROM @{[ $self->sessions ]} AND query ~ 'jobq.(extend|ack)'";

	wait_for($node, "$name: the lease is extended", "SELECT ($tells) IS NOT NULL");
	my $silent = $self->sql($tells);
	ok(stop_at_rest($node, $silent, 'Client'), "$name: a connection goes silent");
	append_to_file("$self->{folder}/go", 'go') if $long;
	says($run, qr/no answer/, "$name: it is noticed");
	wait_for($node, "$name: it is made again", "SELECT ($tells AND pid <> $silent) IS NOT NULL");
	append_to_file("$self->{folder}/go", 'go');
	$self->ends('the job ends', $id);
	$run->{handle}->signal('TERM');
	is(finish($run), 0, "$name: it stops");
	kill('CONT', $silent);
	$self->holds;
	return;
}

# A server which accepts connections but never answers, at the socket of another server.
sub be_silent
{
	my ($socket) = @_;

	unlink $socket;
	return IO::Socket::UNIX->new(Local => $socket, Listen => 20, Timeout => $PostgreSQL::Test::Utils::timeout_default)
	  || die "$socket: $!\n";
}

# The connections are lost, and new connections get no answer for a while.
sub try_silent_connect
{
	my ($node, $name, $command) = @_;
	my $self = JobqLibrary->new($node, $name, $command);
	my $folder = PostgreSQL::Test::Utils::tempdir_short();
	my $real = $node->host . '/.s.PGSQL.' . $node->port;
	my $socket = "$folder/.s.PGSQL." . $node->port;
	my $lose = "SELECT pg_terminate_backend(pid) FROM @{[ $self->sessions ]}";

	symlink $real, $socket;
	my $run = $self->start(PGHOST => $folder);
	my $id = $self->enqueue('{"do": "hold"}');
	$self->begun($id, 1, 'a job begins');
	my $silent = be_silent($socket);
	$self->sql($lose);
	my @unanswered = map { scalar $silent->accept } 1 .. 2;
	is(scalar(grep { $_ } @unanswered), 2, "$name: no answer to who connects");
	unlink $socket;
	symlink $real, $socket;
	wait_for($node, "$name: later there is, and the lease is extended",
		"SELECT count(*) > 0 FROM @{[ $self->sessions ]} AND query ~ 'extend'");
	append_to_file("$self->{folder}/go", 'go');
	$self->ends('the job ends', $id, $self->enqueue('{}'));
	$self->is_sql("SELECT DISTINCT state, attempt FROM jobq.jobs WHERE queue = '$name'", 'completed|1', 'at the first attempt');

	my $again = be_silent($socket);
	$self->sql($lose);
	push @unanswered, scalar $again->accept;
	$run->{handle}->signal('TERM');
	is(finish($run), 0, "$name: it stops without an answer");
	$self->holds;
	return;
}

# As try_silent_connect(), but for longer than a lease: the handler learns of the possible loss
# of its lease while no connection can be made.
sub try_silent_lease
{
	my ($node, $name, $command) = @_;
	my $self = JobqLibrary->new($node, $name, $command);
	my $folder = PostgreSQL::Test::Utils::tempdir_short();
	my $real = $node->host . '/.s.PGSQL.' . $node->port;
	my $socket = "$folder/.s.PGSQL." . $node->port;

	symlink $real, $socket;
	my $run = $self->start(PGHOST => "$folder,$folder,$folder", LEASE => 4);
	my $id = $self->enqueue('{"do": "hold"}');
	$self->begun($id, 1, 'a job begins');
	my $silent = be_silent($socket);
	$self->sql("SELECT pg_terminate_backend(pid) FROM @{[ $self->sessions ]}");
	wait_for_file("$self->{folder}/lost", "$name: the handler is told that its lease may be over");
	unlike($run->{err} . do { $run->{handle}->pump_nb; $run->{err} }, qr/no connection/, "$name: before it is known that nobody answers");
	unlink $socket;
	symlink $real, $socket;
	append_to_file("$self->{folder}/go", 'go');
	$self->ends('the job ends', $id);
	$run->{handle}->signal('TERM');
	is(finish($run), 0, "$name: it stops");
	$self->holds;
	return;
}

# The server never answers.  The connection uses TCP keepalive, so that the consumer does not
# wait forever for a dead server.
sub try_silent_start
{
	my ($node, $name, $command) = @_;
	my $self = JobqLibrary->new($node, $name, $command);
	my $silent = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 20, Timeout => $PostgreSQL::Test::Utils::timeout_default)
	  || die "$!\n";
	my $run = $self->start(PGHOST => '127.0.0.1', PGPORT => $silent->sockport);
	my $unanswered = $silent->accept;

	ok($unanswered, "$name: it connects");
  SKIP:
	{
		skip 'there is no /proc/net/tcp', 1 unless $unanswered && -r '/proc/net/tcp';
		my $ends = sprintf '0100007F:%04X 0100007F:%04X', $unanswered->peerport, $unanswered->sockport;
		my $probe;

		# timer 2 is keepalive; its time is in hundredths of a second
		for (1 .. 90)
		{
			($probe) = slurp_file('/proc/net/tcp') =~ /: $ends \S+ \S+ 02:(\S+)/;
			last if defined $probe;
			usleep(100_000);
		}
		cmp_ok(hex($probe // 'FFFFFF'), '<=', 3100, "$name: in half a minute the server is probed");
	}
	$run->{handle}->signal('TERM');
	is(finish($run), 0, "$name: it stops without an answer");
	return;
}

1;
