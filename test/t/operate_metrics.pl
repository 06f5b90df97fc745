# metrics(): the OpenMetrics parser of Prometheus accepts the text, and the values match the
# views.  The files for Prometheus, the exporter and Grafana name existing metrics and labels only.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', '');
$node->start;

sub sql
{
	my ($query, $as) = @_;

	return $node->safe_psql('postgres', $query, $as ? (connstr => $node->connstr('postgres') . " user=$as") : ());
}

my $odd = q{a "b" c\\d};
sql('CREATE EXTENSION jobq');
wait_for($node, 'the database is served', 'SELECT complete FROM jobq_internal.scheduler_state()');
sql(qq{CREATE ROLE watcher LOGIN;
CREATE ROLE stranger LOGIN;
CREATE FUNCTION good(payload jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION bad(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT jobq.reject_current(''no'')';
SELECT jobq.register('good', 'good(jsonb)'), jobq.register('bad', 'bad(jsonb)');
SELECT jobq.grant_privilege('watcher', 'monitor');
SELECT jobq.create_queue('$odd', mode => 'consumer'), jobq.create_queue('still');
SELECT jobq.pause('still'), jobq.schedule('daily', '0 3 * * *', 'good'), jobq.create_monitor('backlog', 'ready', above => 1000);
SELECT jobq.enqueue(E'two\\nlines', queue => '$odd') FROM generate_series(1, 3);
SELECT jobq.enqueue('good', delay => '1 hour');
SELECT jobq.enqueue('good') FROM generate_series(1, 5);
SELECT jobq.enqueue('bad')});
wait_for($node, 'jobs have run', q{SELECT sum(completed) = 5 AND sum(dead) = 1 AND sum(running) = 0 AND bool_and(exact) FROM jobq.stats});

my $text = sql('SELECT jobq.metrics()', 'watcher');
like($text, qr/\n# EOF\n\z/, 'the text has an end');
my %family = map { $_ => 1 } $text =~ /^# TYPE (\w+) /mg;
is(join(' ', grep { $text !~ /^# HELP $_ \S.*\.$/m } sort keys %family), '', 'all is explained');
my %labels;
while ($text =~ /^(jobq\w*)(\{.*\})? \S+$/mg)
{
	my ($name, $labels) = ($1, $2 // '');

	$labels{$name} //= {};
	$labels{$name}{$_} = 1 foreach $labels =~ /(\w+)="(?:[^"\\]|\\.)*"/g;
}
is(join(' ', grep { !grep { $labels{$_} } $_, $_ . '_total' } sort keys %family), '', 'and there are numbers of all of it');
is(join(' ', grep { !$family{$_} && !$family{s/_(?:total|sum|count)$//r} } sort keys %labels), '', 'and of nothing else');

# Parse with the library of Prometheus.
my $parse = <<'END';
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
print(json.dumps([[s.name, s.labels, s.value] for f in text_string_to_metric_families(sys.stdin.read()) for s in f.samples]))
END
SKIP:
{
	my ($out, $err);

	skip 'python3-prometheus-client is not installed', 15
	  unless eval { run_log([ '/usr/bin/python3', '-c', 'import prometheus_client.openmetrics.parser' ]) };
	IPC::Run::run([ '/usr/bin/python3', '-c', $parse ], '<', \$text, '>', \$out, '2>', \$err);
	is($err, '', 'the parser has nothing to say against it') or skip 'it cannot be read', 14;
	my @samples = @{ decode_json($out) };

	my $value = sub {
		my ($name, %labels) = @_;
		my @found = grep {
			my ($is, $l) = @$_;
			$is eq $name && !grep { !defined $l->{$_} || $l->{$_} ne $labels{$_} } keys %labels
		} @samples;

		return join ' ', map { $_->[2] + 0 } @found;
	};
	is($value->('jobq_jobs', queue => $odd, state => 'ready'), '3', 'jobs that wait, and a name that must be quoted');
	is($value->('jobq_enqueued_total', queue => $odd, kind => "two\nlines"), '3', 'and one of two lines');
	is($value->('jobq_completed_total', kind => 'good', queue => 'default'), '5', 'jobs that are completed');
	is($value->('jobq_dead_total', kind => 'bad'), '1', 'that became dead letters');
	is($value->('jobq_jobs', queue => 'default', state => 'dead'), '1', 'dead letters that there are');
	is($value->('jobq_queue_paused', queue => 'still'), '1', 'a queue that is paused');
	is($value->('jobq_scheduler_running'), '1', 'the scheduler');
	is($value->('jobq_scheduler_complete'), '1', 'which knows all jobs');
	is($value->('jobq_schedules', state => 'active'), '1', 'schedules');
	is($value->('jobq_attempts_total', kind => 'good', queue => 'default'), '5', 'attempts that have ended');
	is($value->('jobq_run_seconds_count', kind => 'good', queue => 'default'), '5', 'of which it is known how long they have run');
	cmp_ok($value->('jobq_run_seconds_sum', kind => 'good'), '>', 0, 'and for how long together');
	cmp_ok($value->('jobq_capacity_used', slots => 'statistics', setting => 'jobq.max_stats'), '>=', 3, 'and how many names are counted');
	cmp_ok($value->('jobq_run_seconds', kind => 'good', quantile => '0.99'), '>=', 0, 'how long they have run');
}

# Privileges.
like($text, qr/^jobq_capacity_most\{slots="workers",setting="jobq.max_workers"\} \d+$/m, 'a monitor sees the set-up');
my (undef, undef, $error) = $node->psql('postgres', 'SELECT jobq.metrics()', connstr => $node->connstr('postgres') . ' user=stranger');
like($error, qr/permission denied/, 'a stranger sees nothing');

# The files use existing metrics only, each with existing labels.  Labels such as "queue" are
# jobq's; "instance" and "job" belong to Prometheus.
my $folder = "$FindBin::RealBin/../../monitoring";
# "jobq web" adds this gauge for several databases: client_web_databases.pl
$labels{jobq_database_up} = { database => 1 };
for my $file ('alerts.yaml', 'grafana.json')
{
	my $content = slurp_file("$folder/$file") =~ s/\\"/"/gr;
	my %named = map { $_ => 1 } $content =~ /\b(jobq_\w+)/g;
	my @unknown = grep { !$labels{$_} } sort keys %named;

	cmp_ok(scalar keys %named, '>', 5, "$file names metrics");
	while ($content =~ /\b(jobq_\w+)\{(.*?)\}/g)
	{
		my ($name, $asked) = ($1, $2);
		push @unknown, map { "$name.$_" } grep { !$labels{$name}{$_} } $asked =~ /(\w+)=/g;
	}
	while ($content =~ /\b(?:by|without|on|ignoring) \(([\w, ]+)\) ?\(.*?\b(jobq_\w+)/g)
	{
		my ($asked, $name) = ($1, $2);
		push @unknown, map { "$name.$_" } grep { !$labels{$name}{$_} } split /, /, $asked;
	}
	is(join(' ', @unknown), '', "$file names no metric and no label that there is not");
}
ok(decode_json(slurp_file("$folder/grafana.json"))->{panels}[0]{targets}[0]{expr}, 'the dashboard is JSON');
my ($n, $queries) = (0, slurp_file("$folder/queries.yaml"));
while ($queries =~ /^(\w+):\n  query: "(.*)"\n  metrics:\n((?:    - \w+: .*\n)+)/mg)
{
	my ($name, $query, $metrics) = ($1, $2, $3);

	is(sql("SELECT string_agg(k, ' ' ORDER BY n) FROM (SELECT * FROM ($query) q LIMIT 1) q, json_object_keys(row_to_json(q)) WITH ORDINALITY k (k, n)", 'watcher'),
		join(' ', $metrics =~ /^    - (\w+):/mg), "the exporter's query $name has the columns that are said");
	$n++;
}
is($n, scalar(() = $queries =~ /^\w/mg), 'all queries were tried');

SKIP:
{
	skip 'promtool is not installed', 2 unless eval { run_log([ 'promtool', '--version' ]) };
	command_ok([ 'promtool', 'check', 'rules', "$folder/alerts.yaml" ], 'promtool accepts the rules');
	command_ok([ 'promtool', 'test', 'rules', "$folder/alerts_test.yaml" ], 'and each alert begins when it should');
}

$node->stop;
no_failed_assertion($node);
done_testing();
