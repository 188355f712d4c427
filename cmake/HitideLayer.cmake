# Build helpers. A layer is one static library whose direct dependencies are all named; its unit
# tests stand beside the code as *_test.cc and are linked into one test program per layer.

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(tsl-robin-map REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)

# Some builds of xxhash choose the widest vectors at run time, which doubles its speed.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES PkgConfig::xxhash)
check_cxx_source_compiles("
#include <xxhash.h>
#include <xxh_x86dispatch.h>
int main() { return static_cast<int>(XXH3_64bits_dispatch(nullptr, 0)); }
" HITIDE_XXHASH_DISPATCH)
unset(CMAKE_REQUIRED_LIBRARIES)

add_library(hitide_flags INTERFACE)
target_compile_options(hitide_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
                                              -Wno-sign-conversion -Wnon-virtual-dtor)
if(HITIDE_WERROR)
  target_compile_options(hitide_flags INTERFACE -Werror)
endif()
if(HITIDE_SANITIZE STREQUAL "address")
  target_compile_options(hitide_flags INTERFACE -fsanitize=address,undefined
                                                -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(hitide_flags INTERFACE -fsanitize=address,undefined)
elseif(HITIDE_SANITIZE STREQUAL "thread")
  target_compile_options(hitide_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(hitide_flags INTERFACE -fsanitize=thread)
elseif(NOT HITIDE_SANITIZE STREQUAL "")
  message(FATAL_ERROR "HITIDE_SANITIZE must be empty, address or thread, not '${HITIDE_SANITIZE}'")
endif()

if(HITIDE_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

# hitide_test(NAME SOURCES file... DEPS target... [LABELS label...] [TIMEOUT seconds])
function(hitide_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT HITIDE_BUILD_TESTS)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(HITIDE_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 4")  # sanitizers cost that much
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gmock_main hitide_flags)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE HITIDE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77)
  if(arg_LABELS)
    set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}")
  endif()
endfunction()

# hitide_layer(NAME DEPS layer... [LIBS target...] [TEST_LABELS label...])
# Sources are the folder's *.cc (and one level of subfolders); *_test.cc go to hitide_<NAME>_test.
function(hitide_layer name)
  cmake_parse_arguments(arg "" "" "DEPS;LIBS;TEST_LABELS;TEST_DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cc
       ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(TRANSFORM arg_DEPS PREPEND hitide_)
  set_property(GLOBAL APPEND PROPERTY HITIDE_LIBS_${name} ${arg_LIBS})
  if(sources)
    add_library(hitide_${name} STATIC ${sources})
    target_link_libraries(hitide_${name} PUBLIC ${arg_DEPS} PRIVATE ${arg_LIBS} hitide_flags)
    target_include_directories(hitide_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include
                               PRIVATE ${PROJECT_SOURCE_DIR}/src)
  else()
    add_library(hitide_${name} INTERFACE)
    target_link_libraries(hitide_${name} INTERFACE ${arg_DEPS} ${arg_LIBS})
    target_include_directories(hitide_${name} INTERFACE ${PROJECT_SOURCE_DIR}/include)
  endif()
  if(tests)
    hitide_test(hitide_${name}_test SOURCES ${tests}
                DEPS hitide_${name} ${arg_LIBS} hitide_test_support ${arg_TEST_DEPS}
                LABELS unit ${arg_TEST_LABELS})
  endif()
endfunction()

# Each public header must compile alone.
function(hitide_headers_alone)
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/hitide/*.h)
  set(units)
  foreach(header ${headers})
    get_filename_component(stem ${header} NAME_WE)
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/headers_alone/${stem}.cc)
    file(CONFIGURE OUTPUT ${unit} CONTENT "#include <hitide/${stem}.h>\n" @ONLY)
    list(APPEND units ${unit})
  endforeach()
  add_library(hitide_headers_alone OBJECT ${units})
  target_include_directories(hitide_headers_alone PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(hitide_headers_alone PRIVATE hitide_flags)
endfunction()
