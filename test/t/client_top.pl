# jobq top: a live screen, on a terminal of 80 columns and 24 rows, and on other sizes.

use strict;
use warnings FATAL => 'all';
use Encode ();
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'Perl has no IO::Pty' unless eval { require IO::Pty; require JobqScreen; 1 };

my ($node, $jobq) = client_node();
my $help = qx('$jobq' top </dev/null 2>&1);
like($help, qr/needs a terminal|without ncurses/, 'it needs a terminal');
if ($help =~ /without ncurses/)
{
	done_testing();
	exit;
}

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub shows
{
	my ($screen, $pattern, $name) = @_;

	return 1 if ok($screen->shows($pattern), $name);
	diag("looked for $pattern, and saw:\n" . Encode::encode("UTF-8", $screen->text));
	return 0;
}

sql(q{CREATE EXTENSION jobq;
CREATE FUNCTION fail(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '%', payload ->> 'error'; END $$;
CREATE FUNCTION hang(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.set_progress(40, 'half way');
	PERFORM pg_sleep(3600);
END $$;
SELECT jobq.register('fail', 'fail(jsonb)', max_attempts => 1), jobq.register('hang', 'hang(jsonb)', max_attempts => 1);
SELECT jobq.create_queue('outside', mode => 'consumer'), jobq.create_queue('another', mode => 'consumer');
SELECT jobq.enqueue('x', queue => 'outside') FROM generate_series(1, 7);
SELECT jobq.enqueue('fail', jsonb_build_object('error', E'no \x1b[31m good \u2026 day'));
SELECT jobq.enqueue('hang')});
wait_for($node, 'one runs and one has failed', q{SELECT EXISTS (SELECT FROM jobq.dead_letters) AND EXISTS (SELECT FROM jobq.workers WHERE kind = 'hang' AND progress = 40)});

my $top = JobqScreen->new(24, 80, $jobq, 'top', '--interval', '0.2');
shows($top, qr{^QUEUES +mode +in/s +out/s +ready +later +oldest +running +dead$}m, 'the columns of queues');
shows($top, qr{^outside +consumer +\S+ +\S+ +7 +0 +\d+\w+ +0 +0$}m, 'a queue, and how many jobs it has');
shows($top, qr{^\d+ +\w+ +running +\d+ +hang +\d+\w+ +40% half way}m, 'a worker, and what it runs');
shows($top, qr{^ +8 fail +default +\d+\w+ +1 no \\x1B\[31m good . day}m, 'a dead letter, which does not control the terminal');
unlike($top->{raw}, qr/\e\[31m good/, 'in no colour of its own');
shows($top, qr{7 ready  0 later  1 running  1 dead letters$}m, 'the sums');
shows($top, qr{Tab table .* q quit$}m, 'the keys');
is(scalar(grep { length $_ > 80 } split /\n/, $top->text), 0, 'all fits');

# The screen is live.
sql(q{SELECT jobq.enqueue('x', queue => 'another', delay => '1 h') FROM generate_series(1, 12)});
shows($top, qr{^another +consumer +\S+ +\S+ +0 +12 }m, 'jobs that were enqueued since');

# Sort and filter.
$top->type('ssssss');			# later
shows($top, qr{later- .*\nanother .*\n}m, 'sorted by a column');
$top->type('S');
shows($top, qr{later\+ .*\n(?!another)}m, 'and the other way round');
$top->type('/outs');
shows($top, qr{filter: outs_}, 'a filter is typed');
shows($top, qr{QUEUES.*\noutside .*\nWORKERS}, 'only what has it is shown');
$top->type("zz");
shows($top, qr{QUEUES.*\n  none like that\n}, 'nothing has it');
$top->type("\x7f\x7f\r");
shows($top, qr{QUEUES.*\noutside .*\nWORKERS}, 'a letter can be deleted');

# Pause, with a confirmation.
$top->type('p');
shows($top, qr{Pause queue "outside"\? \(y/n\)}, 'it asks');
$top->type('n');
shows($top, qr{Nothing was done}, 'no is no');
is(sql(q{SELECT paused FROM jobq.queues WHERE name = 'outside'}), 'f', 'and nothing was');
$top->type('py');
shows($top, qr{Queue "outside" is paused}, 'yes is yes');
shows($top, qr{^outside +paused}m, 'and is seen');
is(sql(q{SELECT paused FROM jobq.queues WHERE name = 'outside'}), 't', 'and was done');
$top->type('py');
shows($top, qr{^outside +consumer}m, 'resumed');
$top->type('c');
shows($top, qr{That is not for this table}, 'what is of another table');

# Cancel and retry.
$top->type("\tcy");
shows($top, qr{Job 9 is cancelled}, 'cancel');
wait_for($node, 'it is', q{SELECT state = 'cancelled' FROM jobq.jobs WHERE id = 9});
sql(q{CREATE OR REPLACE FUNCTION fail(payload jsonb) RETURNS void LANGUAGE sql AS ''});
$top->type("\try");
shows($top, qr{Job 8 runs again}, 'retry');
wait_for($node, 'it does, and does not fail', q{SELECT state = 'completed' FROM jobq.jobs WHERE id = 8});
shows($top, qr{^DEAD.*\n  none\n}m, 'no dead letter is left');

# Other sizes.
$top->resize(40, 120);
shows($top, qr{\A(?:.*\n){38,}Tab table}, 'a larger window is used');
$top->resize(12, 40);
shows($top, qr{\AJ?jobq top.*\n(?:.*\n){10}Tab}i, 'a small one, too');
is(scalar(grep { length $_ > 40 } split /\n/, $top->text), 0, 'all fits there');
$top->resize(5, 15);
shows($top, qr{\AToo small}, 'one that is too small is told so');
$top->resize(24, 80);
$top->type('?');
shows($top, qr{pause or resume the queue}, 'help');
$top->type('x');
shows($top, qr{QUEUES}, 'any key ends it');

# Queues in trouble come first, and the screen says what it does not show.
sql(q{SELECT jobq.create_queue('zz ' || i) FROM generate_series(1, 30) i});
sql(q{SELECT jobq.create_queue('zz waits', mode => 'consumer'), jobq.create_queue('zz paused'); SELECT jobq.pause('zz paused')});
sql(q{SELECT jobq.enqueue('x', queue => 'zz waits', run_at => now() - interval '1 hour')});
$top->type("\t\essss");			# the queues, without the filter, and in the order of the beginning
shows($top, qr{^QUEUES +mode[^+-]*\nzz paused .*\nzz waits .*\n(?!zz)}m, 'paused, then waiting');
shows($top, qr{^Not shown: \d+ queues(?:, \d+ columns)?\s*\nTab}m, 'how many queues are not shown');
$top->resize(24, 50);
shows($top, qr{^Not shown: \d+ queues, \d+ columns}m, 'and columns');
$top->resize(24, 80);
sql(q{SELECT jobq.cancel_many(queue => 'zz waits'); SELECT jobq.drop_queue(name) FROM jobq.queues WHERE name LIKE 'zz%'});
shows($top, qr{QUEUES(?:.*\n)+\s*\nTab}, 'all are shown again');
$top->type("\t\t");

# The server goes away and comes back.
$node->stop('fast');
shows($top, qr{the connection is lost|no connection}, 'the connection is lost');
$node->start;
shows($top, qr{connected again}, 'and made again');
sql(q{SELECT jobq.create_queue('fresh')});
$top->type("\t\e");
shows($top, qr{^fresh }m, 'and it goes on');

# The terminal is restored at the end.
$top->type('q');
is($top->finish, 0, 'it ends');
like($top->{raw}, qr/\e\[\?1049h.*\e\[\?1049l(?:\e\[[\d;?]*[a-zA-Z]|\e>|\r)*\z/s, 'and gives the screen back');
is($top->modes, $top->{modes}, 'and the modes of the terminal');
$top = JobqScreen->new(24, 80, $jobq, 'top');
shows($top, qr{QUEUES}, 'again');
kill 'TERM', $top->{pid};
is($top->finish, 15, 'it is ended by a signal');
like($top->{raw}, qr/\e\[\?1049l/, 'and gives the screen back then, too');
is($top->modes, $top->{modes}, 'as it was');

# A terminal gets colours unless disabled.
my $colour = qr/\e\[\d+m/;
my $list = JobqScreen->new(24, 80, $jobq, 'list');
is($list->finish, 0, 'a list on a terminal');
like($list->{raw}, $colour, 'has colours');
$list = JobqScreen->new(24, 80, $jobq, 'list', '--color=never');
$list->finish;
unlike($list->{raw}, $colour, 'unless it is told not to');
$list = JobqScreen->new(24, 80, 'sh', '-c', "'$jobq' list | cat");
$list->finish;
like($list->{raw}, qr/completed/, 'through a pipe');
unlike($list->{raw}, $colour, 'there are none');

# A role without privileges.
sql(q{CREATE ROLE stranger LOGIN});
$top = JobqScreen->new(24, 80, $jobq, 'top', '-U', 'stranger');
shows($top, qr{^QUEUES.*\n  none\n.*\n  none\n.*\n  none\n}m, 'it sees nothing');
$top->type('pq');
is($top->finish, 0, 'and there is nothing to pause');

$node->stop;
no_failed_assertion($node);
done_testing();
