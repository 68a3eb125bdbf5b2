#!/usr/bin/env perl
# The accounts whose name contains FILTER: accounts.pl [FILTER]
# Perl's core modules only. It needs no token: usher adds it.
use strict;
use warnings;
use Encode qw(decode);
use HTTP::Tiny;
use JSON::PP;

my $url   = $ENV{USHER_URL} || 'http://127.0.0.1:8080/graphql';
my $query = 'query($filter: String, $first: Int) { accounts(filter: $filter, first: $first) { nodes { id name } } }';

sub graphql {
    my ($query, $variables) = @_;
    my $response = HTTP::Tiny->new(timeout => 60)->post($url, {
        headers => { 'Content-Type' => 'application/json' },
        content => encode_json({ query => $query, variables => $variables }),
    });
    # 599 is HTTP::Tiny's own: there was no answer.
    die "$url: $response->{content}Is usher running?\n" if $response->{status} == 599;
    die "$url answered $response->{status}: $response->{content}\n" unless $response->{success};
    my $answer = decode_json($response->{content});
    # The service rejects in two places: beside the data, and (a missing scope) inside it.
    for my $part ($answer, values %{ $answer->{data} // {} }) {
        die encode_json($part->{errors}), "\n" if $part->{errors};
    }
    return $answer->{data};
}

binmode STDOUT, ':encoding(UTF-8)';
my $filter = decode('UTF-8', $ARGV[0] // 'acme');
print "$_->{id} $_->{name}\n" for @{ graphql($query, { filter => $filter, first => 3 })->{accounts}{nodes} };
