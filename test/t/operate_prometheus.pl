# With the files of monitoring/, Prometheus and its exporter (as packaged by Debian) read the
# values of jobq.  Each rule and each chart can be evaluated, and an alert fires.

use strict;
use warnings FATAL => 'all';
use File::Spec;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use HTTP::Tiny;
use IPC::Run ();
use JobqTest;
use JobqWeb;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $patience = $PostgreSQL::Test::Utils::timeout_default;
my @missing = grep { my $p = $_; !grep { -x "$_/$p" } split /:/, $ENV{PATH} } qw(prometheus prometheus-postgres-exporter promtool);

plan(skip_all => "there is no @missing") if @missing;
my ($node, $jobq) = web_node();
my $dir = PostgreSQL::Test::Utils::tempdir();
my $folder = File::Spec->rel2abs("$FindBin::RealBin/../../monitoring");
my $http = HTTP::Tiny->new(timeout => $patience);
my @started;

# Kill all started programs at the end, even after a failure.
END
{
	local $?;
	$_->kill_kill(grace => 5) foreach @started;
}

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Start a program that listens on a free port.  Returns the port.
sub start
{
	my ($environment, @command) = @_;
	my $said = '';
	my $port;

	local @ENV{ keys %$environment } = values %$environment;
	push @started, IPC::Run::start(\@command, '<', File::Spec->devnull, '>', File::Spec->devnull, '2>', \$said, IPC::Run::timeout(1200));
	until (($port) = $said =~ /msg="Listening on" address=127\.0\.0\.1:(\d+)/)
	{
		if (!$started[-1]->pumpable)
		{
			diag($said);
			die "$command[0] has ended\n";
		}
		$started[-1]->pump;
	}
	return $port;
}

# The response of Prometheus to an API request.
my $prometheus;

sub ask
{
	my ($what, %with) = @_;
	my $answer = $http->get("http://127.0.0.1:$prometheus/api/v1/$what?" . $http->www_form_urlencode(\%with));

	return decode_json($answer->{content})->{data} if $answer->{success};
	return {} if $answer->{status} == 503 || $answer->{status} == 599;	# it has not begun
	die "$what @{[ %with ]}: $answer->{content}\n";
}

# The values of an expression, by the given label.
sub values_of
{
	my ($expression, $label) = @_;

	return { map { ($_->{metric}{$label} // '') => $_->{value}[1] + 0 } @{ ask('query', query => $expression)->{result} || [] } };
}

# Wait until the condition holds; print the last state if the condition never does.
sub becomes
{
	my ($what, $is) = @_;
	my $end = time + $patience;
	my ($good, $seen);

	until ((($good, $seen) = $is->())[0] || time > $end)
	{
		usleep(100_000);
	}
	ok($good, $what) or diag(explain($seen));
	return $good;
}

sql(q{CREATE EXTENSION jobq;
CREATE ROLE watcher LOGIN PASSWORD 'secret';
SELECT jobq.grant_privilege('watcher', 'monitor');
CREATE FUNCTION good(payload jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION bad(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT jobq.reject_current(''no'')';
SELECT jobq.register('good', 'good(jsonb)'), jobq.register('bad', 'bad(jsonb)');
SELECT jobq.create_queue('mails'), jobq.create_queue('outside', mode => 'consumer');
SELECT jobq.schedule('daily', '0 3 * * *', 'good');
SELECT jobq.enqueue('good', queue => 'mails') FROM generate_series(1, 5);
SELECT jobq.enqueue('bad', queue => 'mails') FROM generate_series(1, 3);
SELECT jobq.enqueue('any', queue => 'outside') FROM generate_series(1, 2)});
wait_for($node, 'jobs have run', q{SELECT sum(completed) = 5 AND sum(dead) = 3 AND sum(running) = 0 AND bool_and(exact) FROM jobq.stats});

# Both sources of Prometheus.
token_file("$dir/tokens", 'Abcdefghijklmnopqrstuvwx0 user=watcher password=secret');
my $web = serve($jobq, '--token-file', "$dir/tokens", '--allow-trust');
my $exporter = start({ DATA_SOURCE_NAME => "host=" . $node->host . " port=" . $node->port . " user=watcher dbname=postgres sslmode=disable" },
	'prometheus-postgres-exporter', '--web.listen-address=127.0.0.1:0', '--disable-default-metrics', '--disable-settings-metrics',
	'--no-collector.database', '--no-collector.bgwriter', "--extend.query-path=$folder/queries.yaml");
my $exported = $http->get("http://127.0.0.1:$exporter/metrics")->{content};
like($exported, qr/^pg_exporter_last_scrape_error 0$/m, 'the exporter can run all queries');
like($exported, qr/^pg_exporter_user_queries_load_error\{.*\} 0$/m, 'and has read them');
like($exported, qr/^jobq_queue_dead_letters\{[^}]*queue="mails"[^}]*\} 3$/m, 'it exports dead letters');
like($exported, qr/^jobq_stats_completed\{[^}]*kind="good"[^}]*\} 5$/m, 'and statistics');
my @queries = slurp_file("$folder/queries.yaml") =~ /^(\w+):\n  query:/mg;
is(join(' ', grep { $exported !~ /^${_}_\w+\{/m } grep { $_ ne 'jobq_worker' } @queries), '', 'and something of each query');

# Check the text with a parser of the older format.
my $text = $http->get("$web->{url}/metrics", { headers => { Authorization => 'Bearer Abcdefghijklmnopqrstuvwx0' } });
is("$text->{status} $text->{headers}{'content-type'}", '200 application/openmetrics-text; version=1.0.0; charset=utf-8', 'jobq web has metrics');
my $complaints;
IPC::Run::run([ 'promtool', 'check', 'metrics' ], '<', \$text->{content}, '&>', \$complaints, IPC::Run::timeout($patience));
unlike($complaints, qr/error while linting|text format parsing error/, 'promtool reads them');

append_to_file("$dir/prometheus.yaml", qq{
global: {scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 1s}
rule_files: ["$folder/alerts.yaml"]
scrape_configs:
  - job_name: web
    authorization: {credentials: Abcdefghijklmnopqrstuvwx0}
    static_configs: [{targets: ["127.0.0.1:$web->{port}"]}]
  - job_name: exporter
    static_configs: [{targets: ["127.0.0.1:$exporter"]}]
});
command_ok([ 'promtool', 'check', 'config', "$dir/prometheus.yaml" ], 'promtool accepts a configuration with the rules');
$prometheus = start({}, 'prometheus', "--config.file=$dir/prometheus.yaml", "--storage.tsdb.path=$dir/data", '--web.listen-address=127.0.0.1:0');

becomes('Prometheus reads both', sub {
	my $up = values_of('up', 'job');

	return (($up->{web} // 0) == 1 && ($up->{exporter} // 0) == 1, ask('targets')->{activeTargets});
});
becomes('an alert begins', sub {
	my $alerts = ask('alerts')->{alerts} || [];

	return ((grep { $_->{labels}{alertname} eq 'JobqDeadLetters' && $_->{labels}{queue} eq 'mails' && $_->{state} eq 'firing' && $_->{value} == 3 } @$alerts), $alerts);
});
becomes('each rule was evaluated, without an error', sub {
	my @rules = map { @{ $_->{rules} } } @{ ask('rules')->{groups} || [] };

	return (@rules == (() = slurp_file("$folder/alerts.yaml") =~ /alert:/g) && !(grep { $_->{health} ne 'ok' } @rules), \@rules);
});
is(join(' ', grep { $_ ne 'JobqDeadLetters' } map { $_->{labels}{alertname} } grep { $_->{state} eq 'firing' } @{ ask('alerts')->{alerts} || [] }), '', 'and no other alert');

# Both sources report the same values, and each metric in the rules and charts has values.
becomes('both sources count the same', sub {
	my @dead = map { values_of($_, 'queue') } 'jobq_jobs{state="dead"}', 'jobq_queue_dead_letters';
	my ($web_says, $exporter_says) = map { my $of = $_; join ' ', map { "$_ $of->{$_}" } sort keys %$of } @dead;

	return ($web_says eq $exporter_says && $web_says eq 'default 0 mails 3 outside 0', \@dead);
});
my @charts = map { $_->{expr} =~ s/\$queue/.*/gr } map { @{ $_->{targets} } } @{ decode_json(slurp_file("$folder/grafana.json"))->{panels} };
# client_web_databases.pl tests the gauge of several databases
my %named = map { $_ => 1 } grep { $_ ne 'jobq_database_up' } map { /\b(jobq_\w+)/g } slurp_file("$folder/alerts.yaml"), @charts;
becomes('all that rules and charts read is there', sub {
	my @unknown = grep { !%{ values_of("count($_)", '') } } sort keys %named;

	return (!@unknown, \@unknown);
});
becomes('each chart shows something', sub {
	my @empty = grep { !%{ values_of($_, '') } } @charts;

	return (!@empty, \@empty);
});

# The alert ends when the cause is fixed.
sql(q{SELECT jobq.delete_many(state => 'dead')});
becomes('the alert ends', sub {
	my @alerts = grep { $_->{labels}{alertname} eq 'JobqDeadLetters' } @{ ask('alerts')->{alerts} || [ { labels => { alertname => 'JobqDeadLetters' } } ] };

	return (!@alerts, \@alerts);
});

$node->stop;
no_failed_assertion($node);
done_testing();
