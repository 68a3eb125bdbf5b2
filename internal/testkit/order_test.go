package testkit

import "testing"

// A newcomer can read the files of each of these packages in an order in which nothing is used before it is declared.
func TestFilesInOrder(t *testing.T) {
	FilesInOrder(t, "../../proxy", "../../tokens", "../../webhookgate", "../admin", "../admin/history", "../admin/metrics", "../admin/status", "../catchup", "../command", "../content", "../demo", "../entitlements",
		"../guard", "../inbox", "../inbox/engine", "../inbox/postgres", "../inbox/sqlite", "../lane", "../outbound", "../peer", "../receiver", "../sandbox", "../secret", "../serve", "../settings", "../snapshot", "../text", "../view")
}

func TestCircleOf(t *testing.T) {
	uses := map[string]map[string]map[string]bool{
		"a": {"b": {"B": true}}, "b": {"c": {"C": true}, "d": {"D": true}}, "c": {"a": {"A": true}}, "d": {"b": {"B": true}},
	}
	if got := circleOf(uses); len(got) != 2 || got[0] != "b" || got[1] != "d" {
		t.Error(got)
	}
	delete(uses["d"], "b")
	delete(uses["c"], "a")
	if got := circleOf(uses); got != nil {
		t.Error(got)
	}
}
