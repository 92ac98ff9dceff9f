// Asks the example repository over HTTP: one inference, and a stream of responses.
//
//	go run main.go [localhost:8000]
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

type tensor struct {
	Name     string    `json:"name"`
	Shape    []int     `json:"shape"`
	Datatype string    `json:"datatype"`
	Data     []float32 `json:"data"`
}

var client = http.Client{Timeout: 10 * time.Second}

// post sends JSON; an answer other than 200 is an error with the server's words.
func post(url string, body any) (io.ReadCloser, error) {
	encoded, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	answer, err := client.Post(url, "application/json", bytes.NewReader(encoded))
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		defer answer.Body.Close()
		said, _ := io.ReadAll(answer.Body)
		return nil, fmt.Errorf("%s: %s: %s", url, answer.Status, said)
	}
	return answer.Body, nil
}

func infer(address string) error {
	sent := make([]float32, 16)
	for place := range sent {
		sent[place] = float32(place)
	}
	request := map[string][]tensor{"inputs": {{"INPUT0", []int{1, 16}, "FP32", sent}}}
	body, err := post("http://"+address+"/v2/models/identity/infer", request)
	if err != nil {
		return err
	}
	defer body.Close()
	var answer struct{ Outputs []tensor }
	if err := json.NewDecoder(body).Decode(&answer); err != nil {
		return err
	}
	said := "others than sent"
	if len(answer.Outputs) == 1 && slices.Equal(answer.Outputs[0].Data, sent) {
		said = "as sent"
	}
	fmt.Printf("identity: %d numbers, %s\n", len(sent), said)
	return nil
}

// stream reads server-sent events: the model answers as often as the first number says.
func stream(address string) error {
	row := make([]float32, 16)
	row[0] = 3
	body, err := post("http://"+address+"/v2/models/repeat/generate_stream", map[string]any{"INPUT0": row})
	if err != nil {
		return err
	}
	defer body.Close()
	count := 0
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		event, found := strings.CutPrefix(lines.Text(), "data: ")
		if !found {
			continue
		}
		var answer struct{ Error string }
		if err := json.Unmarshal([]byte(event), &answer); err != nil {
			return err
		}
		if answer.Error != "" {
			return fmt.Errorf("repeat: %s", answer.Error)
		}
		count++
	}
	fmt.Printf("repeat: %d responses\n", count)
	return lines.Err()
}

func main() {
	address := "localhost:8000"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	for _, ask := range []func(string) error{infer, stream} {
		if err := ask(address); err != nil {
			log.Fatal(err)
		}
	}
}
