#!/usr/bin/env perl
# May this tenant use this feature? may.pl TENANT FEATURE
# Prints yes or no. Perl's core modules only.
use strict;
use warnings;
use Encode qw(decode);
use HTTP::Tiny;

my $url = $ENV{ENTITLEMENTS_URL} || 'http://127.0.0.1:8070';
my $key = $ENV{ENTITLEMENTS_KEY};

# 1 or 0; dies when usher cannot tell. The codes are text, not bytes.
# Unknown is not "no": decide yourself what a tenant may do that usher does not know.
sub may {
    my ($tenant, $feature) = @_;
    my $http  = HTTP::Tiny->new(timeout => 5, max_redirect => 0);
    my $query = $http->www_form_urlencode({ tenant => $tenant, feature => $feature });
    my $response = $http->get("$url/v1/check?$query", { headers => { $key ? ('X-Usher-Key' => $key) : () } });
    return 1 if $response->{status} == 204;
    return 0 if $response->{status} == 403;
    # 599 is HTTP::Tiny's own: there was no answer.
    die "$url answered $response->{status}: $response->{content}\n";
}

die "usage: may.pl TENANT FEATURE\n" unless @ARGV == 2;
my $allowed = eval { may(map { decode('UTF-8', $_) } @ARGV) };
if (!defined $allowed) {
    print STDERR "usher cannot tell: $@";
    exit 2;
}
print $allowed ? "yes\n" : "no\n";
exit($allowed ? 0 : 1);
