# VACUUM has truncated the table of jobs, and has not recorded this yet: the ready-set entry of
# a job behind the new end is dropped.
#
# Runs on each major: rows are read by direct access.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.workers = 'still=0; *=1'
autovacuum = off
});
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(q{
CREATE EXTENSION jobq;
CREATE FUNCTION pid(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(pg_backend_pid()) $$;
SELECT jobq.register('pid', 'pid(jsonb)');
SELECT jobq.create_queue('still'), jobq.create_queue('last'), jobq.pause('last')});

# The process which runs a job of this queue.
sub runs_in
{
	my ($queue) = @_;
	my $job = sql("SELECT jobq.enqueue('pid', queue => '$queue')");
	return sql("SELECT result FROM jobq.wait($job, '5 min')");
}

# an entry of a job in the last block, which is gone
sql(q{SELECT count(*) FROM jobq.enqueue_many('pid', array_fill('{}'::jsonb, ARRAY[5000]), queue => 'still')});
my $id = sql(q{SELECT jobq.enqueue('pid', queue => 'last')});
ok(sql(qq{SELECT ctid > '(50,0)' FROM jobq_internal.job WHERE id = $id}) eq 't', 'a job is in a block far behind');
sql(qq{SELECT jobq.cancel($id), jobq.cancel_many(queue => 'still', state => 'waiting')});
sql(q{VACUUM (TRUNCATE off) jobq_internal.job});

# the worker knows the length of the table
my $worker = runs_in('default');
my $size = sql(q{SELECT pg_relation_size('jobq_internal.job')});

# VACUUM is complete, except for its update of pg_class
my $catalog = $node->background_psql('postgres');
$catalog->query_safe('BEGIN; LOCK TABLE pg_class IN SHARE MODE;');
my $vacuum = $node->background_psql('postgres');
$vacuum->query_until(qr/vacuum/, qq{\\echo vacuum
VACUUM (INDEX_CLEANUP off) jobq_internal.job;
});
wait_for($node, 'VACUUM waits',
	q{SELECT count(*) = 1 FROM pg_locks WHERE relation = 'pg_class'::regclass AND NOT granted});
cmp_ok(sql(q{SELECT pg_relation_size('jobq_internal.job')}), '<', $size / 2, 'and has truncated the table');
sql(q{SELECT jobq.resume('last')});
is(runs_in('last'), $worker, 'the worker goes on');
$catalog->query_safe('COMMIT;');
$_->quit foreach $vacuum, $catalog;
unlike(slurp_file($node->logfile), qr/could not read blocks|XX001/, 'it has read no block that is not there');

$node->stop;
no_failed_assertion($node);
done_testing();
