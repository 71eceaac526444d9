// SPDX-License-Identifier: Apache-2.0
// The report for continuous integration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <pugixml.hpp>
#include <sstream>

#include "harness/report/junit_report.h"
#include "harness/report/printable.h"
#include "tests/harness/report_samples.h"
#include "tests/support/golden.h"

namespace lockstep::test {

using namespace harness;

namespace {

std::string junit_report() {
  std::ostringstream out;
  feed_samples(*make_junit_report(out));
  return out.str();
}

/// True if every character of `text` is one that XML 1.0 allows, given as UTF-8.
bool only_xml_characters(const std::string& text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 && c != '\t' && c != '\n' && c != '\r') return false;
  }
  return text.find("\xef\xbf\xbe") == std::string::npos &&
         text.find("\xef\xbf\xbf") == std::string::npos;
}

}  // namespace

TEST(JunitReportTest, HasASuitePerFile) { expect_golden("report.junit.xml", junit_report()); }

TEST(JunitReportTest, IsWellFormedWhateverTheTextsAre) {
  const std::string text = junit_report();
  EXPECT_TRUE(only_xml_characters(text));
  pugi::xml_document document;
  ASSERT_TRUE(document.load_string(text.c_str()));
  const CaseResult nasty = sample_nasty();
  const auto node = document
                        .select_node(
                            "//testcase[last()][failure]/../testcase[@name='k=\\x01"
                            "\\x1b[31m']")
                        .node();
  ASSERT_TRUE(node);
  EXPECT_EQ(std::string(node.attribute("classname").value()), nasty.file);
  EXPECT_EQ(std::string(node.child("failure").attribute("message").value()),
            printable(nasty.complaints.front()));
}

TEST(JunitReportTest, CountsAddUp) {
  pugi::xml_document document;
  ASSERT_TRUE(document.load_string(junit_report().c_str()));
  const pugi::xml_node root = document.child("testsuites");
  for (const char* name : {"tests", "failures", "errors", "skipped"}) {
    int sum = 0;
    for (const pugi::xml_node suite : root.children()) sum += suite.attribute(name).as_int();
    EXPECT_EQ(sum, root.attribute(name).as_int()) << name;
  }
  EXPECT_EQ(root.attribute("tests").as_int(), 8);
  EXPECT_EQ(root.attribute("failures").as_int(), 4);
  EXPECT_EQ(root.attribute("errors").as_int(), 1);
  EXPECT_EQ(root.attribute("skipped").as_int(), 1);
  EXPECT_EQ(document.select_nodes("//failure").size(), 4U);
  EXPECT_EQ(document.select_nodes("//error").size(), 1U);
  EXPECT_EQ(document.select_nodes("//testcase/skipped").size(), 1U);
}

RC_GTEST_PROP(JunitReportProps, AnyBytesGiveWellFormedXml, ()) {
  CaseResult result;
  result.file = *rc::gen::string<std::string>();
  result.title = *rc::gen::string<std::string>();
  result.complaints = {*rc::gen::string<std::string>()};
  std::ostringstream out;
  const auto report = make_junit_report(out);
  report->begin({});
  report->case_done(result);
  report->end({});
  RC_ASSERT(only_xml_characters(out.str()));
  pugi::xml_document document;
  RC_ASSERT(static_cast<bool>(document.load_string(out.str().c_str())));
  const pugi::xml_node node = document.child("testsuites").child("testsuite").child("testcase");
  RC_ASSERT(node.child("failure").attribute("message").value() ==
            printable(result.complaints.front()));
}

}  // namespace lockstep::test
