# jobq web: links that send a signal without a log-in.

use strict;
use warnings FATAL => 'all';
use Digest::SHA qw(sha256_base64);
use FindBin;
use lib "$FindBin::RealBin/../perl";
use HTTP::Tiny;
use IO::Select;
use JobqTest;
use JobqWeb;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my ($node, $jobq) = web_node();

sub sql { return $node->safe_psql('postgres', $_[0]); }

# The program's own role has no privilege on jobq.
sql(q{
CREATE EXTENSION jobq;
CREATE ROLE stranger LOGIN;
SELECT jobq.create_queue('c', mode => 'consumer')});
my $server = serve($jobq, '-U', 'stranger');
my $http = HTTP::Tiny->new(timeout => $PostgreSQL::Test::Utils::timeout_default);
my %browser = (Accept => 'text/html,application/xhtml+xml;q=0.9,*/*;q=0.8', 'User-Agent' => 'Mozilla/5.0');
my $job = sql(q{SELECT jobq.enqueue('x', queue => 'c')});

sub link_to { return sql(qq{SELECT jobq.signal_link($job, \$x\$$_[0]\$x\$)}); }
sub signals { return sql("SELECT coalesce(string_agg(payload::text, ' ' ORDER BY id), '') FROM jobq_internal.signal WHERE job_id = $job AND answer IS NULL AND name = \$x\$$_[0]\$x\$"); }

# Send a request.  Returns status, content, and the response.
sub ask
{
	my ($method, $path, $headers, $content, $base) = @_;
	my $answer = $http->request($method, ($base || $server)->{url} . $path, { headers => $headers || {}, defined $content ? (content => $content) : () });

	return ($answer->{status}, $answer->{content}, $answer);
}

# A browser gets a page.  Neither GET nor HEAD sends the signal, because programs that scan mails follow links.
my $name = q{<b>Pay</b> "7" & '8'/9?};
my $path = link_to($name);
my ($status, $text, $answer) = ask('GET', $path, \%browser);
is($status, 200, 'a page without a log-in');
like($text, qr{<h1>&#60;b&#62;Pay&#60;/b&#62; &#34;7&#34; &#38; &#39;8&#39;/9\?</h1>}, 'with the name of the signal');
like($text, qr{<form method="post"><button>}, 'and a button');
unlike($text, qr{script|https?:|src=|href=}, 'without parts from elsewhere');
is(ref $answer->{headers}{'content-security-policy'}, '', 'there is one policy');
my $hash = sha256_base64($text =~ m{<style>(.*)</style>}s);
$hash .= '=' while length($hash) % 4;
is($answer->{headers}{'content-security-policy'}, "default-src 'none'; style-src 'sha256-$hash'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
	'which allows the style and the button, and no frame');
is(join(' ', map { "$_=" . ($answer->{headers}{$_} // '') } qw(cache-control referrer-policy x-frame-options x-content-type-options content-type)),
	'cache-control=no-store referrer-policy=no-referrer x-frame-options=DENY x-content-type-options=nosniff content-type=text/html; charset=utf-8', 'no cache has the page, and no other site its address');
is($answer->{headers}{'set-cookie'}, undef, 'no cookie');
is((ask('HEAD', $path, \%browser))[0], 200, 'HEAD');
is(signals($name), '', 'no signal was sent');

# The button.  A browser names no origin, and a form of another site counts as well.
($status, $text, $answer) = ask('POST', $path, { %browser, Origin => 'null', 'Sec-Fetch-Site' => 'cross-site', 'Content-Type' => 'application/x-www-form-urlencoded' }, '');
is($status, 200, 'the button');
like($text, qr{<p>Thank you}, 'answers with a page');
unlike($text, qr/<button/, 'without a button');
is(signals($name), '{}', 'and sends the signal');
($status, $text, $answer) = ask('POST', $path, \%browser, '');
is("$status $answer->{headers}{'idempotency-replayed'}", '200 true', 'a second time, nothing is wrong');
($status, $text) = ask('GET', $path, \%browser);
like("$status $text", qr/^200 .*<p>This link has been used/s, 'the link shows that it was used');
unlike($text, qr/<button/, 'and has no button');
is(signals($name), '{}', 'the signal was sent once');

# A program gets JSON.
$path = link_to('webhook');
is(join(' ', (ask('GET', $path))[ 0, 1 ]), '200 {"name":"webhook","done":false}', 'a program gets JSON');
is(join(' ', (ask('POST', $path, { 'Content-Type' => 'application/json' }, '{"paid": [1, "ä"]}'))[ 0, 1 ]), '200 {"name":"webhook","done":true}', 'a payload');
($status, $text, $answer) = ask('POST', $path, { 'Content-Type' => 'application/json' }, '{"paid": 2}');
is("$status $text $answer->{headers}{'idempotency-replayed'}", '200 {"name":"webhook","done":true} true', 'a repeated webhook');
is(signals('webhook'), '{"paid": [1, "ä"]}', 'is no second signal');

# A form of an application's own page.
$path = link_to('form');
is((ask('POST', $path, { %browser, 'Content-Type' => 'application/x-www-form-urlencoded; charset=utf-8' }, 'comment=so+%22be%22+%26+it%21&by=%C3%84nn&=x&empty&a=1&a=2%'))[0], 200, 'a form');
is(signals('form'), '{"": "x", "a": "2%", "by": "Änn", "empty": "", "comment": "so \"be\" & it!"}', 'becomes an object');

# Bodies that are refused, by a valid and by a wrong link.
$path = link_to('refused');
for my $link ($path, "$path.")
{
	is((ask('POST', $link, { 'Content-Type' => 'application/json' }, '{"a": '))[0], 400, "a broken body: $link");
	is((ask('POST', $link, { 'Content-Type' => 'application/json' }, '"' . 'x' x 9000 . '"'))[0], 413, 'a large body');
	is((ask('POST', $link, { 'Content-Type' => 'text/plain' }, 'x'))[0], 415, 'another type');
}
is((ask('POST', $path, { 'Content-Type' => 'application/x-www-form-urlencoded' }, 'a=%FF%FE'))[0], 400, 'a form that is not UTF-8');
is((ask('PUT', $path, { 'Content-Type' => 'application/json' }, '{}'))[0], 405, 'another method');
like((ask('POST', $path, { %browser, 'Content-Type' => 'application/json' }, '{'))[1], qr/<p>the body is not valid JSON/, 'a browser gets a page');
is(signals('refused'), '', 'none sends a signal');

# The name is shown as it is, and may be long.
my $long = 'é' x 63 . '/';
is((ask('GET', link_to($long)))[1], qq({"name":"$long","done":false}), 'a long name');

# The answer to a wrong link reveals nothing, and comes late.
my $other = sql(q{SELECT jobq.signal_link(jobq.enqueue('x', queue => 'c'), 'other')});
my $begun = time;
my @wrong = map { join ' ', (ask('GET', $_, \%browser))[ 0, 1 ] } $path =~ s/.$/./r, substr($path, 0, 40) . substr($other, 40), '/signal/' . 'A' x 100, '/signal/x';
cmp_ok(time - $begun, '>', 3.9, 'a wrong link is answered after a second');
like($wrong[0], qr/^404 .*<p>This link is not valid/s, 'a wrong link');
is(scalar(grep { $_ eq $wrong[0] } @wrong), 4, 'is answered in the same way, whatever is wrong');
like((ask('POST', "$path.", {}, ''))[1], qr{"status":404,"detail":"This link is not valid}, 'a program gets a problem');
is((ask('GET', '/signal/'))[0], 404, 'no link');
is((ask('GET', "$path/x"))[0], 404, 'a longer path');

# Many wrong links of an address do not delay a right link of another address.
my @tries = map { raw($server, "POST /signal/$_ HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", '127.0.0.2') } 1 .. 40;
$begun = time;
is((ask('GET', $path))[0], 200, 'a right link of another address');
cmp_ok(time - $begun, '<', 3, 'is not delayed by wrong links');
my @got = map { hear($_, qr{^HTTP/1\.1 (\d+)}) =~ m{^HTTP/1\.1 (\d+)} } @tries;
is(join(' ', sort { $a <=> $b } keys %{ { map { $_ => 1 } @got } }), '404 429', 'too many wrong links are refused');
undef @tries;

# The end of a link.
sql(q{SELECT jobq.test_clock('31 days')});
($status, $text) = ask('GET', $path, \%browser);
like("$status $text", qr/^410 .*<p>This link has expired/s, 'an expired link');
like(join(' ', (ask('POST', $path, {}, ''))[ 0, 1 ]), qr/^410 .*"This link has expired\."/, 'sends no signal');
sql(q{SELECT jobq.test_clock('0')});
my $used = link_to('used');
is((ask('POST', $used, {}, ''))[0], 200, 'a link that is used');
sql("SELECT jobq.cancel($job)");
($status, $text) = ask('POST', $path, \%browser, '');
like("$status $text", qr/^410 .*<p>No answer is needed any more/s, 'the job has finished');
is((ask('POST', $used, {}, ''))[0], 200, 'the used link is still a used link');
is(signals('refused'), '', 'no signal was sent');

# A server that changes nothing.
$job = sql(q{SELECT jobq.enqueue('x', queue => 'c')});
$path = link_to('go');
my $reads = serve($jobq, '-U', 'stranger', '--read-only');
is((ask('GET', $path, {}, undef, $reads))[0], 200, '--read-only: the link is shown');
is((ask('POST', $path, {}, '', $reads))[0], 403, 'and not used');
is(signals('go'), '', 'no signal was sent');

# Links that wait for the server do not delay a log-in.
my $keeper = $node->background_psql('postgres');
$keeper->query_safe('BEGIN; LOCK TABLE jobq_internal.signal IN ACCESS EXCLUSIVE MODE');
my @waiting = map { raw($server, "GET $path HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "127.0.0.$_") } 2 .. 17;
wait_for($node, 'links wait', q{SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'jobq web' AND wait_event_type = 'Lock'});
is((ask('GET', '/healthz'))[0], 200, 'all links have come');
isnt((ask('POST', '/api/session', { 'Content-Type' => 'application/json' }, '{"role": "nobody", "password": "x"}'))[0], 429, 'a log-in does not wait for links');
is(scalar(() = IO::Select->new(@waiting)->can_read(0)), 0, 'all links still wait');
$keeper->quit;
close $_ foreach @waiting;

# Several databases: the path names the database.  Each link is valid only in its database.
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION jobq');
my $there = $node->safe_psql('other', q{SELECT jobq.signal_link(jobq.enqueue('x', queue => jobq.create_queue('c', mode => 'consumer')::text || 'c'), 'go')});
my $both = serve($jobq, '-U', 'stranger', '-d', 'postgres', '-d', 'other');
is((ask('GET', $path, {}, undef, $both))[0], 200, 'the first database');
is((ask('GET', "/db/postgres$path", {}, undef, $both))[0], 200, 'by its name');
is((ask('GET', "/db/other$there", {}, undef, $both))[0], 200, 'another database');
is((ask('GET', "/db/other$path", {}, undef, $both))[0], 404, 'a link for a database is not valid in another');
is((ask('GET', $there, {}, undef, $both))[0], 404, 'nor the other way round');
is((ask('POST', "/db/postgres$path", \%browser, '', $both))[0], 200, 'use');
is(signals('go'), '{}', 'the signal was sent');

foreach my $run ($server, $reads, $both)
{
	$run->{process}->signal('TERM');
	ok($run->{process}->finish, 'it ends well');
}
wait_for($node, 'no connection is left', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'jobq web'});

$node->stop;
no_failed_assertion($node);
done_testing();
