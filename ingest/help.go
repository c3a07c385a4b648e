package ingest

// Help returns the help text of every metric that an Ingest exposes, by name,
// for whoever writes them out.
func Help() map[string]string {
	return map[string]string{
		"kvatlas_ingest_messages_total":             "Messages read from the streams.",
		"kvatlas_ingest_bytes_total":                "Bytes of the messages read.",
		"kvatlas_ingest_redelivered_messages_total": "Messages that the server delivered again.",
		"kvatlas_ingest_malformed_total":            "Messages skipped because they are no event batch, by reason.",
		"kvatlas_ingest_heartbeats_total":           "Heartbeats read.",
		"kvatlas_ingest_events_total":               "Events handed to the index, by kind.",
		"kvatlas_ingest_ignored_events_total":       "Events not handed to the index, by reason.",
		"kvatlas_ingest_departed_workers_total":     "Workers whose blocks were dropped because they left.",
		"kvatlas_ingest_blocks_total":               "Blocks of events, by what the index did with them.",
		"kvatlas_ingest_gaps_total":                 "Gaps in a rank's event ids that were given up on.",
		"kvatlas_ingest_missed_events_total":        "Events that fell into gaps.",
		"kvatlas_ingest_publisher_restarts_total":   "New incarnations of ranks; each ends what the one before held.",
		"kvatlas_ingest_held_messages":              "Messages held back until an earlier one arrives.",
		"kvatlas_ingest_recoveries_asked_total":     "Recoveries asked for, by cause.",
		"kvatlas_ingest_reader_resets_total":        "Times that reading a stream began anew, by reason.",
		"kvatlas_ingest_discover_errors_total":      "Failed looks for new streams.",
		"kvatlas_ingest_refused_streams_total":      "Streams not read because they may lose messages.",
		"kvatlas_ingest_void_positions_total":       "Start positions that the stream no longer has.",
		"kvatlas_ingest_batch_events":               "Events of a message.",
		"kvatlas_ingest_message_bytes":              "Size of a message, in bytes.",
		"kvatlas_ingest_publish_to_applied_seconds": "Time from a batch's publication to its application, in seconds.",
		"kvatlas_ingest_lag_messages":               "Messages of a stream that are not applied yet.",
		"kvatlas_ingest_lag_seconds":                "Age of the oldest message of a stream that is not applied yet, in seconds.",
		"kvatlas_ingest_position":                   "Stream sequence up to which everything is applied.",
		"kvatlas_ingest_in_flight_messages":         "Messages of a stream that are read and not applied yet.",
		"kvatlas_ingest_in_flight_bytes":            "Bytes of the messages that are read and not applied yet.",
	}
}
