# The load: sessions of several roles that use all of jobq, each in a separate
# process.  Each job has a tag, both in its payload and in the notes of the session.
# about.fate is the expected end:
#	done	completes		dead	becomes a dead letter
#	over	done, dead or cancelled	maybe	perhaps does not exist
#	skipped	cancelled

package Load;

use strict;
use warnings FATAL => 'all';
use Bounds;
use Compose;
use Nest;
use Session;
use Time::HiRes qw(time usleep);

# Sessions: name, function, role, options.  Producers end with the load, other sessions when
# all jobs are done.
my @producers = (
	[ 'plain', \&produce, 'chaos_1', '' ],
	[ 'async', \&produce, 'chaos_2', '-c synchronous_commit=off' ],
	[ 'group', \&produce_groups, 'chaos_1', '' ],
	[ 'asyncgroup', \&produce_groups, 'chaos_2', '-c synchronous_commit=off' ],
	[ 'prepare', \&prepare, 'chaos_3', '' ],
	[ 'unique', \&produce_unique, 'chaos_2', '' ],
	[ 'batch', \&Compose::batches, 'chaos_3', '' ],
	[ 'nest', \&Nest::workflows, 'chaos_1', '' ],
	[ 'shared', \&Bounds::share, 'chaos_2', '' ],
	[ 'taken', \&Bounds::find_taken, 'chaos_3', '' ],
	[ 'full1', \&Bounds::fill, 'chaos_1', '-c jobq.enqueue_timeout=10min' ],
	[ 'full2', \&Bounds::fill, 'chaos_3', '-c jobq.enqueue_timeout=10min' ],
	[ 'heard', \&Compose::be_heard, 'chaos_4', '' ],
	[ 'statement', \&Compose::statements, 'chaos_2', '' ],
	[ 'tick', \&ticks, 'chaos_4', '' ],
	[ 'meddle', \&meddle, 'chaos_4', '' ]);
my @others = (
	[ 'consumer1', \&consume, 'chaos_consumer', '' ],
	[ 'consumer2', \&consume, 'chaos_consumer', '' ],
	[ 'worker', \&work, 'chaos_1', '' ],
	[ 'watch', \&watch, 'postgres', '' ],
	[ 'measure', \&Bounds::measure, 'postgres', '' ]);

# Start all sessions.  Returns the process numbers of both kinds.
sub launch
{
	my ($folder, $round, $seed) = @_;
	my $n = 0;
	my @pids;

	unlink "$folder/stop.produce", "$folder/stop.all", glob "$folder/notes/*";
	foreach my $list (\@producers, \@others)
	{
		push @pids, [
			map {
				Session->launch($_->[1],
					folder => $folder, round => $round, name => $_->[0], role => $_->[2],
					options => $_->[3], seed => $seed * 100 + $n++)
			} @$list
		];
	}
	return @pids;
}

# A call of enqueue() for one job, with the properties of the job.
sub any_job
{
	my ($self, %given) = @_;
	my $tag = $self->new_tag;
	my $kind = $given{kind} || Session::pick(qw(chaos.work) x 5, qw(chaos.together chaos.together chaos.steps chaos.steps chaos.durable chaos.limited
			chaos.rated chaos.shared chaos.paced chaos.doomed chaos.slow chaos.outside chaos.outside), @Bounds::taking);
	my $fails = rand() < 0.15 ? 1 + int rand 2 : 0;
	my $queue =
		$kind eq 'chaos.outside' ? Session::pick('outside', 'outside narrow', 'outside memory', 'outside shared')
	  : $kind eq 'chaos.work' ? Session::pick('default', 'default', 'narrow', 'fair', 'shared', 'paced',
		  $self->{role} eq 'chaos_1' ? 'own' : 'default')
	  : 'default';
	my @options = ("queue => '$queue'");

	$fails = 0 if $kind !~ /work|together|steps|limited|shared|ing$/;
	push @options, 'priority => ' . int rand 4 if rand() < 0.3;
	push @options, "delay => '" . int(rand 300) . " ms'" if rand() < 0.2;
	push @options, "max_attempts => 1000, backoff => 'fixed 20ms'" if $kind eq 'chaos.outside';
	my $payload = Session::payload(tag => $tag, fails => $fails,
		ms => rand() < 0.5 ? 0 : int rand 25, $kind =~ /ing$/ ? Bounds::places($kind) : ());
	my $about = {
		kind => $kind, role => $self->{role}, fails => $fails, async => $self->is_async,
		fate => $kind =~ /doomed|slow/ ? 'dead' : $kind =~ /skipping|replacing/ ? 'over' : 'done'
	};
	return ("jobq.enqueue('$kind', $payload, " . join(', ', @options) . ')', $tag, $about);
}

# Enqueue jobs in all kinds of transactions.
sub produce
{
	my ($self) = @_;

	while ($self->wire('produce') && !$self->stopped('produce'))
	{
		my $way = rand;
		my @calls = map { [ any_job($self) ] } 1 .. 3;

		if ($way < 0.5)
		{
			$self->enqueue("SELECT $calls[0][0]", $calls[0][1], $calls[0][2]);
		}
		elsif ($way < 0.65)
		{
			# the second job is undone
			$self->transaction([ "SELECT $calls[0][0]", 'SAVEPOINT s', "SELECT $calls[1][0]",
					rand() < 0.5 ? 'ROLLBACK TO s' : 'SELECT 1', "SELECT $calls[2][0]" ],
				'COMMIT',
				{ map { $_->[1] => { %{ $_->[2] }, $_ == $calls[1] ? (fate => 'maybe') : () } } @calls },
				{});
		}
		elsif ($way < 0.75)
		{
			$self->transaction([ map { "SELECT $_->[0]" } @calls ],
				'ROLLBACK', {}, { map { $_->[1] => $_->[2] } @calls });
		}
		elsif ($way < 0.85)
		{
			my $tag = $self->new_tag;
			$self->enqueue(
				'INSERT INTO jobq.inbox (kind, payload, priority) VALUES '
				  . "('chaos.work', " . Session::payload(tag => $tag) . ', 1)',
				$tag,
				{ kind => 'chaos.work', role => $self->{role}, async => $self->is_async, fate => 'done' });
		}
		else
		{
			my @tags = map { $self->new_tag } 1 .. ($way < 0.99 ? 1 + int rand 20 : 300);
			my $kind = Session::pick('chaos.work', 'chaos.together');
			$self->enqueue(
				"SELECT jobq.enqueue_many('$kind', ARRAY["
				  . join(', ', map { Session::payload(tag => $_) } @tags)
				  . ']::jsonb[])',
				map { $_ => { kind => $kind, role => $self->{role}, async => $self->is_async, fate => 'done' } } @tags);
		}
		$self->pause(10, 50);
	}
	return;
}

# Groups: later jobs have larger numbers.  In a queue with limited patience, the group
# continues without a failed job that is to be retried later.
sub produce_groups
{
	my ($self) = @_;
	my %serial;

	while ($self->wire('produce') && !$self->stopped('produce'))
	{
		my $queue = Session::pick(('outside grouped') x 3, ('grouped') x 4, ('patient') x 3);
		my $outside = $queue =~ /outside/;
		my $patient = $queue eq 'patient';
		my $group = substr($queue, 0, 1) . int rand 3;
		my (%jobs, @calls);

		for (1 .. 1 + int rand 4)
		{
			my $tag = $self->new_tag;
			my $n = ++$serial{$group};
			my $fails = !$outside && rand() < 0.2 ? 1 : 0;
			my $kind = $outside ? 'chaos.outside' : Session::pick('chaos.work', 'chaos.work', 'chaos.steps', 'chaos.limited',
				$patient ? () : ('chaos.together') x 3);
			my $payload = Session::payload(tag => $tag, grp => "$self->{name} $group", n => $n,
				fails => $fails, ms => int rand 10, $outside ? () : (places => 1));

			push @calls,
			  "jobq.enqueue('$kind', $payload, queue => '$queue', "
			  . "group_key => '$self->{name} $group', max_attempts => 1000, backoff => 'fixed "
			  . ($patient ? 300 : 20) . "ms')";
			$jobs{$tag} = { kind => $kind, role => $self->{role}, async => $self->is_async, fails => $fails, fate => 'done' };
		}
		$self->transaction([ map { "SELECT $_" } @calls ], 'COMMIT', \%jobs, {});
		$self->pause(20, 80);
	}
	return;
}

# Prepared transactions, which end some time later.
sub prepare
{
	my ($self) = @_;
	my $serial = 0;

	while ($self->wire('produce') && !$self->stopped('produce'))
	{
		my ($call, $tag, $about) = any_job($self);
		my $name = "chaos $self->{round} " . ++$serial;
		my $keep = rand() < 0.7;

		$self->note($tag, 'try', $about);
		my $answer = $self->{wire}->ask("BEGIN; SELECT $call");
		$answer = $self->{wire}->ask("PREPARE TRANSACTION '$name'") unless $answer->{error};
		if ($answer->{lost})
		{
			# if the transaction exists, end it
			my $there = $self->wire('produce', 1)
			  ->value("SELECT true FROM pg_prepared_xacts WHERE gid = '$name'");
			next unless $there;
		}
		elsif ($answer->{error})
		{
			$self->{wire}->ask('ROLLBACK');
			$self->note($tag, 'no');
			next;
		}
		$self->pause(1, rand() < 0.2 ? 500 : 30);
		end_prepared($self, $name, $keep ? 'COMMIT' : 'ROLLBACK');
		$self->note($tag, $keep ? 'ok' : 'no');
		$self->pause(20, 60);
	}
	# transactions of sessions lost during PREPARE
	my $rows = $self->wire('produce', 1)->ask(
		"SELECT gid FROM pg_prepared_xacts WHERE gid ~ '^chaos '")->{rows};
	end_prepared($self, $_->[0], 'ROLLBACK') foreach @$rows;
	return;
}

sub end_prepared
{
	my ($self, $name, $how) = @_;

	while (1)
	{
		my $answer = $self->wire('produce', 1)->ask("$how PREPARED '$name'");

		return if !$answer->{error} || $answer->{error} =~ /^42704/;
		# 55000: the lost session still has the transaction for a moment
		$self->pause(10, 20);
	}
	return;
}

sub produce_unique
{
	my ($self) = @_;

	while ($self->wire('produce') && !$self->stopped('produce'))
	{
		my $tag = $self->new_tag;

		# replacing a running job makes both run at once
		my $conflict = Session::pick(qw(skip skip replace error));
		my $n = int rand 3;
		my $key = ($conflict eq 'replace' ? 'r' : 'u') . $n;
		my $scope = (qw(kind queue database))[$n];
		my $payload = Session::payload(tag => $tag, grp => "unique $key", ms => int rand 30,
			fails => rand() < 0.2 ? 1 : 0);

		$self->enqueue(
			qq[SELECT jobq.enqueue('chaos.work', $payload, unique_key => '$key', uniqueness => '{"scope": "$scope", "on_conflict": "$conflict"}']
			  . (rand() < 0.3 ? ", delay => '50 ms')" : ')'),
			$tag,
			{ kind => 'chaos.work', role => $self->{role}, fate => 'maybe' });
		$self->pause(10, 40);
	}
	return;
}

# Schedules, from the beginning of the load to its end.
sub ticks
{
	my ($self) = @_;
	my @names = ('all', 'skip');

	$self->insist(sub {
		"SELECT jobq.schedule('chaos $_[0]', 'every 1 second', 'chaos.work', "
		  . Session::payload(tag => "$self->{round}.tick.$_[0]")
		  . ", missed => 'all', overlap => '" . ($_[0] eq 'all' ? 'allow' : 'skip') . "',"
		  . q{ options => '{"max_attempts": 1000}')};
	}, @names);
	$self->pause(50, 100) until $self->stopped('produce');
	$self->insist(sub { "SELECT jobq.unschedule('chaos $_[0]')" }, @names);
	return;
}

# Cancel, move, retry and await jobs.
sub meddle
{
	my ($self) = @_;
	my @known;

	while ($self->wire('produce') && !$self->stopped('produce'))
	{
		my ($call, $tag, $about) = any_job($self, kind => Session::pick(qw(chaos.work chaos.steps chaos.durable chaos.doomed)));
		$about->{fate} = 'over';
		my $rows = $self->enqueue("SELECT $call", $tag, $about);
		push @known, [ $rows->[0][0], $tag ] if $rows;
		@known = @known[ -20 .. -1 ] if @known > 20;
		next unless @known;
		my ($id, $about_tag) = @{ $known[ rand @known ] };
		my $deed = Session::pick(qw(cancel reschedule set_priority retry wait wait wait));
		my $sql =
			$deed eq 'reschedule' ? "SELECT jobq.edit($id, run_at => jobq_internal.clock() + interval '100 ms')"
		  : $deed eq 'set_priority' ? "SELECT jobq.edit($id, priority => " . int(rand 4) . ')'
		  : $deed eq 'wait' ? "SELECT state FROM jobq.wait($id, '1s')"
		  : "SELECT jobq.$deed($id)";
		$self->note($about_tag, $deed) if $deed =~ /cancel|retry/;
		my $answer = $self->{wire}->ask($sql);
		$self->note($about_tag, 'told')
		  if $deed eq 'wait' && @{ $answer->{rows} } && ($answer->{rows}[0][0] || '') eq 'completed';
		$self->pause(10, 60);
	}
	return;
}

# Reserve the next jobs or a certain job; one transaction ends the jobs and writes their
# effects.
sub consume
{
	my ($self) = @_;

	while ($self->wire('all') && !$self->stopped('all'))
	{
		my $queues = Session::pick(q({outside,"outside narrow"}), q({"outside grouped"}), q({"outside memory"}),
			q({"outside shared","outside full"}), q({"outside priced","outside releasing","outside replacing"}),
			q({"outside grouped",outside,"outside memory","outside narrow","outside shared","outside full","outside priced",)
			. q("outside releasing","outside replacing"}));
		my $max = Session::pick(1, 5);
		my $rolls_back = rand() < 0.05;
		my $sql = 'SELECT r.id, token, attempt, payload, queue, clock_timestamp() FROM ' . (rand() < 0.75
			? "jobq.reserve('$queues', $max, '1500 ms', '150 ms') r"
			# any job, not necessarily the next in turn
			: "(SELECT id FROM jobq.live_jobs WHERE queue = ANY ('$queues') ORDER BY random() LIMIT 1) j, "
			  . "jobq.reserve_job(j.id, '1500 ms') r");

		$self->{wire}->ask('BEGIN') if $rolls_back;
		my $answer = $self->{wire}->ask($sql);
		if ($rolls_back)
		{
			$self->{wire}->ask('ROLLBACK');
			next;
		}
		if (!@{ $answer->{rows} })
		{
			$self->pause(5, 20);
			next;
		}
		next if $answer->{error};
		$self->pause(0, 15);
		finish($self, $answer->{rows});
	}
	return;
}

sub finish
{
	my ($self, $rows) = @_;
	my $deed = rand;
	my $array = sub { my ($i) = @_; "'{" . join(',', map { $_->[$i] } @$rows) . "}'::bigint[]" };
	my ($ids, $tokens) = ($array->(0), $array->(1));
	my @sql;

	return if $deed < 0.02;		# forgets them
	if ($deed < 0.1)
	{
		@sql = "SELECT jobq.nack(id, token, 'no', '20 ms') FROM (SELECT * FROM unnest($ids, $tokens) u (id, token) ORDER BY id) u";
	}
	elsif ($deed < 0.2)
	{
		@sql = "SELECT jobq.release(id, token, '10 ms') FROM (SELECT * FROM unnest($ids, $tokens) u (id, token) ORDER BY id) u";
	}
	else
	{
		@sql = ('BEGIN',
			'INSERT INTO chaos.effect SELECT payload::jsonb ->> \'tag\', id, attempt, \'chaos.outside\', queue, '
			  . "payload::jsonb ->> 'grp', (payload::jsonb ->> 'n')::int, started, clock_timestamp(), NULL FROM (VALUES "
			  . join(', ', map { "($_->[0]::bigint, $_->[2]::int, " . join(', ', map { Wire::quote($_) } @$_[ 3, 4 ])
					. ', ' . Wire::quote($_->[5]) . '::timestamptz)' } @$rows)
			  . ') v(id, attempt, payload, queue, started)',
			"SELECT jobq.ack_many($ids, $tokens)",
			'COMMIT');
	}
	# tokens are valid in another session, also after a crash
	for my $try (1 .. 20)
	{
		my $answer = { error => 'none' };

		foreach my $sql (@sql)
		{
			my $wire = $self->wire('all') or return;
			$answer = $wire->ask($sql);
			last if $answer->{error};
		}
		return unless $answer->{error};
		$self->{wire}->ask('ROLLBACK') if @sql > 1 && !$answer->{lost};
		return if $answer->{error} =~ /^JQ011/;
		$self->pause(20, 40);
	}
	return;
}

# A worker in a session, for a queue without other workers.
sub work
{
	my ($self) = @_;

	while ($self->wire('all') && !$self->stopped('all'))
	{
		$self->{wire}->ask(q{CALL jobq.work(queues => '{own}', max_time => '400 ms')});
		$self->pause(1, 20);
	}
	return;
}

# Check invariants repeatedly.  After a disturbance lowers the limiter, more jobs may run
# for a moment than it allows.
sub watch
{
	my ($self) = @_;

	while ($self->wire('all') && !$self->stopped('all'))
	{
		my $answer = $self->{wire}->ask(q{
SELECT 'job ' || id || ' is in two tables' FROM (
	SELECT id FROM jobq_internal.job UNION ALL SELECT id FROM jobq_internal.archive UNION ALL SELECT id FROM jobq_internal.dead_letter) t
	GROUP BY id HAVING count(*) > 1
UNION ALL
SELECT 'jobs ' || string_agg(id::text, ', ') || ' have the same unique key ' || unique_key FROM jobq_internal.job
	WHERE unique_key ~ '^u' GROUP BY kind, role, unique_key HAVING count(*) > 1
UNION ALL
SELECT coalesce(queue, kind, limiter) || ' has ' || running || ' jobs that run, and not ' || max_running FROM jobq.limits
	WHERE type IN ('queue', 'kind', 'limiter') AND running > CASE WHEN limiter = 'shared' THEN 2 ELSE max_running END AND by IS NULL});

		$self->note('watch', 'wrong', { what => $_->[0] }) foreach @{ $answer->{rows} };
		$self->note('watch', 'wrong', { what => '    ' . join ' | ', map { defined ? $_ : '' } @$_ })
		  foreach map { @{ $self->{wire}->ask($_)->{rows} || [] } } grep { @{ $answer->{rows} || [] } }
		  q{SELECT 'runs', id, kind, queue FROM jobq.jobs WHERE state = 'running'},
		  q{SELECT 'lease', * FROM jobq_internal.lease_slots()},
		  q{SELECT 'worker', * FROM jobq.workers};
		$self->pause(50, 150);
	}
	return;
}

1;
