# The console of jobq web in a browser, driven by test/console/run.mjs.

use strict;
use warnings FATAL => 'all';
use Cwd ();
use File::Basename ();
use File::Copy ();
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run ();
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($chromium) = grep { -x $_ } $ENV{CHROMIUM} || (), '/usr/bin/chromium', '/usr/bin/chromium-browser';
my $has_node = eval { IPC::Run::run([ 'node', '--version' ], '>', \my $version); $version =~ /^v(\d+)/ && $1 >= 18 };

plan skip_all => 'there is no Chromium' unless $chromium;
plan skip_all => 'there is no node of version 18 or later' unless $has_node;

my ($node, $jobq) = client_node();

# The time to lay out a payload grows no faster than the payload.
my $layout = q{
import { readFileSync } from 'node:fs';
const { pretty } = await import(`data:text/javascript,${encodeURIComponent(readFileSync(process.argv[1], 'utf8'))}`);
const rows = (n) => JSON.stringify({ rows: Array.from({ length: n }, (_, i) => ({ n: i, text: 'd41d8cd98f00b204e9800998ecf8427e', name: 'x' })) });
console.log(JSON.stringify(JSON.parse(pretty(rows(30000)))) === rows(30000), pretty('{"a,":[],"b":{"c":"[","d":[1,{}]}}'));
};
my $laid_out;
ok(IPC::Run::run([ 'node', '--input-type=module', '-e', $layout, "$FindBin::RealBin/../../client/console/api.js" ], '>', \$laid_out,
	IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default)), 'a payload of 1.9 MB is laid out');
is($laid_out, qq(true {\n  "a,": [],\n  "b": {\n    "c": "[",\n    "d": [\n      1,\n      {}\n    ]\n  }\n}\n), 'as it is');

# Numbers that JavaScript would round keep their digits, as strings.  A string may be long.
my $read = <<'END';
import { readFileSync } from 'node:fs';
const { cut, parse, pretty } = await import(`data:text/javascript,${encodeURIComponent(readFileSync(process.argv[1], 'utf8'))}`);
console.log(JSON.stringify(cut('{"id" : 7, "payload": {"x": "},\\"", "n": [12345678901234567890]}, "b" : [1,{"payload": 2}], "result": null , "c":"d"}', ['payload', 'result', 'headers'])));
console.log(JSON.stringify(parse('{"id": 50755254975729665, "list": [12345678901234567890.0123, -9007199254740993, 9007199254740991, 1.5, 1e-05, 0.30000000000000004], "text": "a \\" 50755254975729665,"}')));
const long = JSON.stringify({ text: 'x'.repeat(16e6), n: 50755254975729664 });
console.log(parse(long).text.length, pretty(long).length - long.length, pretty('{"text": "it ends [within'));
END
my $kept;
ok(IPC::Run::run([ 'node', '--input-type=module', '-e', $read, "$FindBin::RealBin/../../client/console/api.js" ], '>', \$kept,
	IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default)), 'answers are read');
is($kept, <<'END', 'with all their digits');
{"texts":{"payload":"{\"x\": \"},\\\"\", \"n\": [12345678901234567890]}","result":"null"},"rest":"{\"id\" : 7,\"b\" : [1,{\"payload\": 2}],\"c\":\"d\"}"}
{"id":"50755254975729665","list":["12345678901234567890.0123","-9007199254740993",9007199254740991,1.5,0.00001,0.30000000000000004],"text":"a \" 50755254975729665,"}
16000000 9 {
  "text": "it ends [within
END

# An action on all jobs of a list concerns the jobs of the list: the number in the filter is not rounded.
my $modules = PostgreSQL::Test::Utils::tempdir();
File::Copy::copy($_, $modules) or die "$_: $!" foreach glob "$FindBin::RealBin/../../client/console/*.js";
append_to_file("$modules/package.json", '{"type": "module"}');
my $chosen;
ok(IPC::Run::run([ 'node', '--input-type=module', '-e', <<'END', $modules ], '>', \$chosen, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default)), 'the conditions of an action');
const { write } = await import(`${process.argv[1]}/api.js`);
const { conditions } = await import(`${process.argv[1]}/find.js`);
console.log(write({ ...conditions({ queue: 'a "b"', payload: '{"id": 50755254975729665, "sum": 1.10}' }), dry_run: true }));
END
is($chosen, qq({"queue":"a \\"b\\"","payload":{"id": 50755254975729665, "sum": 1.10},"dry_run":true}\n), 'are the filters of the list');

# The expression of a schedule in words.
my $cron = <<'END';
import { readFileSync } from 'node:fs';
const { words } = await import(`data:text/javascript,${encodeURIComponent(readFileSync(process.argv[1], 'utf8'))}`);
for (const e of ['0 5 * * *', '30 4 * * mon-fri', '*/5 * * * *', '*/7 * * * *', '0 */2 * * *', '15,45 * * * *', '*/10 8-18 * * *', '0 0 L * *', '0 0 1,15 * 1', '0 12 * jan,jul 7',
	'0 8,12 * * *', '@weekly', '@every 5m', '*/30 * * * * *', '10 0 5 * * *', '0 0 15W * *', '0 0 * * 5#2', 'RRULE:FREQ=DAILY', 'nonsense'])
	console.log(`${e}: ${words(e)}`);
END
my $in_words;
ok(IPC::Run::run([ 'node', '--input-type=module', '-e', $cron, "$FindBin::RealBin/../../client/console/cron.js" ], '>', \$in_words,
	IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default)), 'schedules are put into words');
is($in_words, <<'END', 'and those that have none are left alone');
0 5 * * *: Every day at 05:00
30 4 * * mon-fri: At 04:30 on Monday to Friday
*/5 * * * *: Every 5 minutes
*/7 * * * *: 
0 */2 * * *: Every 2 hours at :00
15,45 * * * *: Every hour at :15 and :45
*/10 8-18 * * *: Every 10 minutes from 08:00 to 18:59
0 0 L * *: At 00:00 on the last day of the month
0 0 1,15 * 1: At 00:00 on day 1 and 15 of the month, and on Monday
0 12 * jan,jul 7: At 12:00 on Sunday in January and July
0 8,12 * * *: Every day at 08:00 and 12:00
@weekly: At 00:00 on Sunday
@every 5m: Every 5m
*/30 * * * * *: Every 30 seconds
10 0 5 * * *: Every day at 05:00:10
0 0 15W * *: 
0 0 * * 5#2: 
RRULE:FREQ=DAILY: 
nonsense: 
END

# The graph of a workflow: no edge comes near the box of another step, and no boxes overlap.
my $graphs = <<'END';
import { readFileSync } from 'node:fs';
const { layout } = await import(`data:text/javascript,${encodeURIComponent(readFileSync(process.argv[1], 'utf8'))}`);
let seed = 7;
const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
let edges = 0;

for (let graph = 0; graph < 200; graph++) {
	const n = 2 + Math.floor(random() * 25);
	const steps = Array.from({ length: n }, (_, i) => ({ name: `${i}`, needs: Array.from({ length: i }, (_, j) => `${j}`).filter(() => random() < 2.5 / n) }));
	const plan = layout(steps);
	const boxes = [...plan.boxes.values()];

	for (const { from, to, points } of plan.edges)
		for (let i = 1; i < points.length; i++)
			for (const b of boxes)
				if (Math.min(points[i - 1].x, points[i].x) < b.x + b.width && Math.max(points[i - 1].x, points[i].x) > b.x
					&& Math.max(points[i - 1].y, points[i].y) > b.y - 5 && Math.min(points[i - 1].y, points[i].y) < b.y + b.height + 5)
					console.log(`graph ${graph}: the edge from ${from} to ${to} passes a step`);
	for (const a of boxes)
		if (boxes.some((b) => b !== a && b.x === a.x && Math.abs(b.y - a.y) < a.height + 10))
			console.log(`graph ${graph}: two steps overlap`);
	edges += plan.edges.length === steps.reduce((sum, step) => sum + step.needs.length, 0) ? 1 : 0;
}
console.log(edges, layout(Array.from({ length: 300 }, (_, i) => ({ name: `${i}`, needs: Array.from({ length: i }, (_, j) => `${j}`) }))));
END
my $drawn;
ok(IPC::Run::run([ 'node', '--input-type=module', '-e', $graphs, "$FindBin::RealBin/../../client/console/layout.js" ], '>', \$drawn,
	IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default)), 'workflows are laid out');
is($drawn, "200 null\n", 'with all edges in free lanes, and not if there are too many');

sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(q{
CREATE EXTENSION jobq;
CREATE ROLE boss LOGIN PASSWORD 'secret';
CREATE ROLE anna LOGIN PASSWORD 'anna';
CREATE ROLE vera LOGIN PASSWORD 'vera';
SELECT jobq.grant_privilege('boss', 'manage'), jobq.grant_privilege('anna'), jobq.grant_privilege('vera', 'monitor');
DO $$ BEGIN EXECUTE format('GRANT %I TO boss', current_user); END $$;
CREATE TABLE step (n int);
CREATE FUNCTION steps(p jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 2 LOOP
		WHILE NOT EXISTS (SELECT FROM step WHERE n >= i) LOOP PERFORM pg_sleep(0.05); END LOOP;
		PERFORM jobq.set_progress(50 * i, 'half way');
	END LOOP;
	PERFORM jobq.log('line ' || i || '.') FROM generate_series(1, 80) i;
	WHILE NOT EXISTS (SELECT FROM step WHERE n >= 3) LOOP PERFORM pg_sleep(0.05); END LOOP;
	PERFORM jobq.log('line ' || i || '.') FROM generate_series(81, 160) i;
	PERFORM jobq.log('it was a long way');
	RETURN '{"steps": 2}';
END $$;
CREATE FUNCTION picky(p jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF p ->> 'good' IS DISTINCT FROM 'true' THEN RAISE EXCEPTION 'it is not good'; END IF;
	RETURN p;
END $$;
CREATE FUNCTION sorry(p jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'sorry'; END $$;
CREATE FUNCTION evil(p jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.log('<img src=x onerror="window.harmed=1">');
	RAISE EXCEPTION '<img src=x onerror="window.harmed=1">%', repeat(' long', 100);
END $$;
CREATE FUNCTION lines(p jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION E'it broke\\n  at the second line\\n  at the third%', coalesce((SELECT string_agg(E'\\n  at line ' || i, '') FROM generate_series(4, (p ->> 'more')::int) i), '') USING DETAIL = 'It has a detail.' || repeat(' It is long.', 30), HINT = 'Try another.';
END $$;
SELECT jobq.register('lines', 'lines(jsonb)', max_attempts => 1);
SELECT jobq.register('steps', 'steps(jsonb)', max_attempts => 1), jobq.register('picky', 'picky(jsonb)', max_attempts => 1),
	jobq.register('sorry', 'sorry(jsonb)', max_attempts => 1), jobq.register('evil', 'evil(jsonb)', max_attempts => 2, backoff => 'fixed 1 ms'),
	jobq.register('<img src=x onerror=harmed=1>', 'picky(jsonb)', max_attempts => 1);
SELECT jobq.create_queue('outside', mode => 'consumer'), jobq.create_queue('mail', max_running => 2),
	jobq.create_queue('<b onclick=harmed=1>', tenant => 'header customer', fair => 'jobs'), jobq.create_queue('held', mode => 'consumer');
CREATE ROLE "<img src=x onerror=harmed=1>" LOGIN;
SELECT jobq.grant_privilege('"<img src=x onerror=harmed=1>"', queue => '<b onclick=harmed=1>');
SELECT jobq.enqueue('sorry') FROM generate_series(1, 3);
SET ROLE "<img src=x onerror=harmed=1>";
SELECT jobq.enqueue('evil', '{"<img src=x onerror=\"window.harmed=1\">": "</script><script>harmed=1</script>"}',
	headers => '{"\"><svg onload=harmed=1>": 1, "customer": "<script>harmed=1</script>"}', unique_key => '"><img src=x onerror=harmed=1>', group_key => '<iframe src=javascript:harmed=1>',
	queue => '<b onclick=harmed=1>');
RESET ROLE;
SELECT jobq.enqueue('<img src=x onerror=harmed=1>', '{"good": "true", "<img src=x onerror=harmed=1>": "<img src=x onerror=harmed=1>"}');
SELECT jobq.enqueue('parcel', queue => 'held');
SELECT jobq.set_progress(id, token, 40, '<img src=x onerror=harmed=1>'), jobq.log(id, token, '<img src=x onerror=harmed=1>')
FROM jobq.reserve('{held}', lease => '1 hour', wait => '5 min', consumer => '<img src=x onerror=harmed=1>');
SELECT jobq.enqueue('picky', '{"good": "true"}', unique_key => 'k-' || i, delay => '1 h') FROM generate_series(1, 60) i;
SELECT jobq.create_queue('shared', mode => 'consumer', tenant => 'header customer', fair => 'jobs');
SELECT jobq.enqueue('parcel', queue => 'shared', headers => jsonb_build_object('customer', c)) FROM unnest('{acme,globex,acme}'::text[]) c;
SET ROLE boss;
SELECT jobq.schedule('<img src=x onerror=harmed=1>', '30 4 * * *', 'picky', timezone => 'Europe/Madrid');
RESET ROLE;
SELECT jobq.create_workflow('{"name": "<script>harmed=1</script>", "steps": [
	{"name": "goods", "kind": "picky", "payload": {"good": "true"}},
	{"name": "freight", "kind": "picky", "needs": ["goods"], "payload": {"good": "true"}},
	{"name": "<svg onload=harmed=1>", "kind": "picky", "needs": ["goods"]},
	{"name": "total", "kind": "picky", "needs": ["freight", "<svg onload=harmed=1>"], "payload": {"good": "true"}}]}')});
wait_for($node, 'the jobs have come to their ends', q{SELECT count(*) >= 5 FROM jobq.dead_letters});

my $superuser = sql('SELECT current_user');
unlink $node->data_dir . '/pg_hba.conf';
$node->append_conf('pg_hba.conf', "local all $superuser trust\nlocal all all scram-sha-256\n");
$node->reload;

my ($out, $err) = ('', '');
my $web = IPC::Run::start([ $jobq, 'web', '--listen', '127.0.0.1:0' ], '<', File::Spec->devnull, '>', File::Spec->devnull, '2>', \$err,
	IPC::Run::timeout(1000));
$web->pump until $err =~ m{listening at (\S+)|error: };
my $url = $1;

END { local $?; $web->kill_kill(grace => 1) if $web; }

if (!$url)
{
	plan skip_all => 'the program jobq was built without libmicrohttpd' if $err =~ /built without/;
	BAIL_OUT("jobq web: $err");
}

# The screenshots stay for inspection.
my $folder = Cwd::abs_path("$FindBin::RealBin/../..") . '/tmp_check/console';
my ($axe) = grep { -r $_ } map { "$_/axe-core/axe.min.js" } $ENV{JOBQ_CACHE} || (), '/var/cache/jobq', ($ENV{HOME} || '') . '/.cache/jobq';
$ENV{JOBQ_WEB_PID} = $web->{KIDS}[0]{PID};
$ENV{PGUSER} = $superuser;
IPC::Run::run([ 'node', "$FindBin::RealBin/../console/run.mjs", $url, $folder, $axe || () ], '>', \$out, '2>', \$err, IPC::Run::timeout(1000));
foreach my $line (split /\n/, $out)
{
	$line =~ /^(not )?ok (.*)/ ? ok(!$1, $2) : diag($line);
}
is($?, 0, 'all was tried');
diag($err) if $err ne '';
note("pictures are in $folder");
SKIP: { skip 'axe-core is not there: accessibility was not checked', 1 unless $axe; ok(1, 'accessibility was checked'); }

$node->stop;
no_failed_assertion($node);
done_testing();
